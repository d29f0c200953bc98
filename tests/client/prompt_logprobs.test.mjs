// Logprobs of prompts over HTTP: those of a generation again when its tokens come back as a prompt,
// whatever the size of the chunks, the cache, the drafts and the requests beside.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { expectForm } from './contract.mjs';
import { Server } from './server.mjs';

const model = 'tiny-v41';
const question = [{ role: 'user', content: 'Which rivers are there in France, and where?' }];
const generation = { model, prompt: 'Tell me about rivers.', max_tokens: 100, temperature: 0.7,
  seed: 5, logprobs: 4, ignore_eos: true, return_token_ids: true };

// What a server says of a conversation and of the tokens that it generated itself.
async function ask(client) {
  const made = await client.completions.create(generation);
  expectForm('completion', made);
  const [{ prompt_token_ids: before, token_ids: tokens, logprobs }] = made.choices;
  const again = { model, prompt: [...before, ...tokens], max_tokens: 1, temperature: 0, logprobs: 4,
    echo: true, prompt_logprobs: 20 };
  const [echo, chat] = await Promise.all([client.completions.create(again),
    client.chat.completions.create({ model, messages: question, max_tokens: 1, temperature: 0,
      prompt_logprobs: 3 }),
    client.completions.create({ ...generation, seed: 6 })]);
  expectForm('completion', echo);
  expectForm('chat_completion', chat);
  const [choice] = echo.choices;
  const at = before.length;
  assert.equal(choice.logprobs.token_logprobs[0], null);
  assert.equal(choice.logprobs.top_logprobs[0], null);
  assert.equal(choice.logprobs.tokens.join(''), choice.text);
  assert.deepEqual(choice.logprobs.token_logprobs.slice(at, -1), logprobs.token_logprobs);
  assert.deepEqual(choice.logprobs.top_logprobs.slice(at, -1), logprobs.top_logprobs);
  assert.equal(choice.prompt_logprobs.length, at + tokens.length);
  assert.deepEqual(again.prompt.slice(1).map((id, i) => choice.prompt_logprobs[i + 1][id].logprob),
    choice.logprobs.token_logprobs.slice(1, -1));
  assert.equal(echo.usage.prompt_tokens_details.cached_tokens, 0, 'its rows are computed');
  return { logprobs, choice, chat: chat.prompt_logprobs, text: made.choices[0].text };
}

// rule: R4.4, LP4
test('the same in every configuration, and again on a warm cache', async () => {
  const results = [];
  for (const flags of [
    [],
    ['--max-num-batched-tokens', '64', '--max-num-seqs', '8', '--enable-prefix-caching', '0'],
    ['--speculation-method', 'none', '--lanes', '2', '-dp', '2'],
  ]) {
    const server = await Server.start(flags);
    try {
      results.push(await ask(server.client()));
      if (flags.length === 0) results.push(await ask(server.client()));
    } finally {
      await server.stop();
    }
  }
  for (const result of results.slice(1)) assert.deepEqual(result, results[0]);
});

test('a prompt longer than a step', async () => {
  const server = await Server.start();
  try {
    const answer = await server.client().completions.create({ model,
      prompt: 'A river is long. '.repeat(150), max_tokens: 1, prompt_logprobs: 1 });
    expectForm('completion', answer);
    assert.ok(answer.usage.prompt_tokens > 560);
    assert.equal(answer.choices[0].prompt_logprobs.length, answer.usage.prompt_tokens);
    assert.equal(answer.choices[0].prompt_logprobs.filter((entry) => entry === null).length, 1);
  } finally {
    await server.stop();
  }
});
