// A server with keys, seen by the SDK: 401, 403 and 429 with their own classes, and what tries again.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import OpenAI from 'openai';

import { expectForm } from './contract.mjs';
import { programs, Server } from './server.mjs';

const model = 'tiny-v41';
const short = { model, prompt: 'one two', max_tokens: 1 };
const keys = {};
let server, directory;

// An entry of the file for a new key, with these lines in it.
function entry(id, lines) {
  const said = execFileSync(join(programs, 'skein'), ['keygen', '--api', id], { encoding: 'utf8' });
  keys[id] = /key: (\S+)/.exec(said)[1];
  const hmac = /hmac: "([0-9a-f]{64})"/.exec(said)[1];
  return [`  ${id}:`, `    hmac: "${hmac}"`, ...lines.map((line) => `    ${line}`)].join('\n');
}

before(async () => {
  directory = mkdtempSync(join(tmpdir(), 'skein-keys-'));
  const file = join(directory, 'keys.yaml');
  writeFileSync(file, ['keys:', entry('shop', []), entry('reader', ['routes: models']),
    entry('slow', ['requests_per_second: 1'])].join('\n') + '\n');
  server = await Server.start(['--api-key-file', file]);
});
after(async () => {
  await server?.stop();
  rmSync(directory, { recursive: true });
});

async function refused(kind, status, code, apiKey, make, attempts = 1, maxRetries = 2) {
  const client = server.client({ apiKey, maxRetries });
  const error = await make(client).then(() => assert.fail('not refused'), (thrown) => thrown);
  assert.ok(error instanceof kind, `${error}`);
  assert.deepEqual([error.status, error.code], [status, code]);
  assert.equal(client.attempts.length, attempts);
  for (const { body } of client.attempts) expectForm('error', body);
  return client.attempts;
}

test('401: no key, an unknown one, a wrong secret: all alike, none tried again', async () => {
  const messages = new Set();
  for (const key of ['none', 'nobody.00', `shop.${'0'.repeat(64)}`, `${keys.shop}0`]) {
    const [{ headers, body }] = await refused(OpenAI.AuthenticationError, 401, 'invalid_api_key',
      key, (client) => client.completions.create(short));
    assert.equal(headers.get('www-authenticate'), 'Bearer');
    messages.add(body.error.message);
  }
  assert.equal(messages.size, 1);
});

test('403: a route that the key may not use is named', async () => {
  const client = server.client({ apiKey: keys.reader });
  assert.equal((await client.models.list()).data[0].id, model);
  const [{ body }] = await refused(OpenAI.PermissionDeniedError, 403, 'forbidden', keys.reader,
    (other) => other.completions.create(short));
  assert.match(body.error.message, /completions/);
});

test('429: the SDK waits as told and is served', async () => {
  const client = server.client({ apiKey: keys.slow });
  for (let i = 0; i < 3; ++i) await client.completions.create(short);
  const limited = client.attempts.filter((attempt) => attempt.status === 429);
  assert.ok(limited.length >= 1, 'the limit was met');
  for (const { headers, body } of limited) {
    assert.ok(Number(headers.get('retry-after')) >= 1);
    assert.ok(Number(headers.get('retry-after-ms')) > 0);
    assert.equal(headers.get('x-should-retry'), null);
    assert.equal(body.error.type, 'rate_limit_error');
  }
  await Promise.all([...Array(4)].map(() => client.models.list().catch(() => null)));
  await refused(OpenAI.RateLimitError, 429, 'rate_limit_exceeded', keys.slow,
    (other) => other.completions.create(short), 1, 0);
});

test('a key that is good is served beside all that', async () => {
  const client = server.client({ apiKey: keys.shop });
  const { choices } = await client.chat.completions.create({ model,
    messages: [{ role: 'user', content: 'Hello' }], max_tokens: 3 });
  assert.equal(choices.length, 1);
});
