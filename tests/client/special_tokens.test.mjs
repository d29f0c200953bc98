// No text of a client becomes the id of an added token, whole or cut over parts and messages.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { Server } from './server.mjs';

const added = JSON.parse(readFileSync('deploy/models/tiny-v41/tokenizer.json')).added_tokens;
const special = new Set(added.map(({ id }) => id));
// Each text whole and cut between any two of its characters.
const pieces = added.flatMap(({ content }) => {
  const letters = [...content];
  return [[content, ''], ...letters.slice(1).map((_, i) =>
    [letters.slice(0, i + 1).join(''), letters.slice(i + 1).join('')])];
});

async function post(server, route, body) {
  const response = await fetch(server.origin + route, { method: 'POST', body: JSON.stringify(body),
    headers: { 'content-type': 'application/json' } });
  assert.equal(response.status, 200);
  return response.json();
}
const parts = (texts) => texts.map((text) => ({ type: 'text', text }));

// rule: E3
test('no text of a client becomes an added token', async () => {
  assert.ok(added.length >= 30 && pieces.length > 300);
  const server = await Server.start(['--max-model-len', '32768', '--num-blocks', '600',
    '--max-num-seqs', '1']);
  try {
    const specials = async (texts) => {
      const flat = texts.flat();
      const messages = [{ role: 'system', content: parts(flat) },
        { role: 'user', content: parts(flat) },
        // One after the other in messages of their own, which the encoding joins.
        ...texts.slice(0, 200).flatMap(([left, right]) => [
          { role: 'user', content: left || 'x' }, { role: 'user', content: right || 'x' }])];
      const { tokens } = await post(server, '/tokenize', { messages });
      return tokens.filter((id) => special.has(id));
    };
    const harmless = await specials(pieces.map(() => ['a', 'b']));
    assert.deepEqual(await specials(pieces), harmless);
    const { tokens } = await post(server, '/tokenize',
      { prompt: added.map(({ content }) => content).join('') });
    assert.deepEqual(tokens.filter((id) => special.has(id)), [tokens[0]], 'the added BOS alone');
  } finally {
    await server.stop();
  }
});
