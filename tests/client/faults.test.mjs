// Clients that go, deadlines, and processes that are killed in the middle of a stream.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';

import { expectForm, expectStream } from './contract.mjs';
import { Server, waitUntil } from './server.mjs';

const story = { model: 'tiny-v41', temperature: 0.8, seed: 7, max_tokens: 300, ignore_eos: true,
  logprobs: true, messages: [{ role: 'user', content: 'Tell me about rivers.' }] };

// Runs `body` with a server of its own.
const withServer = (flags, body) => async () => {
  const server = await Server.start(flags);
  try {
    await body(server);
  } finally {
    await server.stop();
  }
};
const idle = (server) => waitUntil('no request to be left', async () =>
  await server.metric('skein_requests_running') === 0);

// What the stream gives until it ends or breaks; `at` is called at the chunk of that number.
async function read(stream, number, at) {
  const chunks = [];
  let error = null;
  try {
    for await (const chunk of stream) {
      chunks.push(chunk);
      if (chunks.length === number) await at();
    }
  } catch (thrown) {
    error = thrown;
  }
  return { chunks, error };
}
const entriesOf = (chunks) => chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []);

test('a stream goes on over the loss of its worker', withServer([], async (server) => {
  const client = server.client();
  const whole = await client.chat.completions.create(story);
  const stream = await client.chat.completions.create({ ...story, stream: true });
  const { chunks, error } = await read(stream, 10, () => server.kill('worker.0'));
  assert.equal(error, null);
  expectStream(chunks);
  assert.deepEqual(entriesOf(chunks), whole.choices[0].logprobs.content);
  assert.equal(entriesOf(chunks).length, 300);
  assert.equal(await server.metric('skein_replays_total'), 1);
  assert.equal(client.attempts.length, 2, 'nothing was tried again');
}));

test('the stream helper goes on over it as well', withServer([], async (server) => {
  const client = server.client();
  const whole = await client.chat.completions.create(story);
  const stream = client.chat.completions.stream(story);
  let chunks = 0;
  stream.on('chunk', () => { if (++chunks === 10) server.kill('worker.0'); });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  assert.deepEqual(final.choices[0].logprobs.content, whole.choices[0].logprobs.content);
  assert.equal(await server.metric('skein_replays_total'), 1);
}));

// rule: R3.2
test('the loss of the coordinator is an error, not a short answer', withServer([],
  async (server) => {
    const client = server.client();
    const stream = await client.chat.completions.create({ ...story, stream: true });
    const { chunks, error } = await read(stream, 10, () => server.kill('coordinator'));
    assert.ok(error instanceof Error, 'the SDK must report it');
    assert.ok(entriesOf(chunks).length < 300);
    assert.ok(chunks.every((chunk) => chunk.choices[0].finish_reason === null));
    await server.ready();
    const again = await client.chat.completions.create(story);
    expectForm('chat_completion', again);
    assert.deepEqual(entriesOf(chunks),
      again.choices[0].logprobs.content.slice(0, entriesOf(chunks).length));
  }));

test('retries carry a request over a restart', withServer(['--restart-backoff-min', '1.5'],
  async (server) => {
    const client = server.client({ maxRetries: 8 });
    const call = { ...story, max_tokens: 20 };
    const whole = await client.chat.completions.create(call);
    server.kill('worker.0');
    await waitUntil('the loss to be known', async () => {
      const health = await fetch(`${server.origin}/health`);
      await health.arrayBuffer();
      return health.status === 503;
    });
    client.attempts.length = 0;
    const again = await client.chat.completions.create(call);
    assert.deepEqual(again.choices, whole.choices);
    const refused = client.attempts.slice(0, -1);
    assert.ok(refused.length >= 1, 'refused at first');
    for (const attempt of refused) {
      assert.equal(attempt.status, 503);
      assert.equal(attempt.body.error.code, 'not_ready');
      assert.ok(Number(attempt.headers.get('retry-after')) >= 1);
    }
  }));

// rule: A4, R3.1
test('a deadline inside a stream is an error event', withServer([], async (server) => {
  const client = server.client();
  const stream = await client.chat.completions.create(
    { ...story, max_tokens: 3900, stream: true }, { headers: { 'x-request-timeout': '0.3' } });
  const { chunks, error } = await read(stream, 1, () => {});
  assert.ok(error instanceof OpenAI.APIError, `${error}`);
  assert.equal(error.code, 'request_timeout');
  assert.equal(error.type, 'timeout_error');
  expectForm('stream_error', error.error);
  assert.equal(error.error.retryable, true);
  assert.ok(chunks.every((chunk) => chunk.choices[0].finish_reason === null));
  await idle(server);
}));

test('a server that stops ends its streams with an error event',
  withServer(['--shutdown-timeout', '0.1'], async (server) => {
    const client = server.client();
    const stream = await client.chat.completions.create(
      { ...story, max_tokens: 3900, stream: true });
    const { chunks, error } = await read(stream, 10, () => server.terminate());
    assert.ok(error instanceof OpenAI.APIError, `${error}`);
    expectForm('stream_error', error.error);
    assert.match(error.message, /stopped before the answer ended/);
    assert.ok(chunks.every((chunk) => chunk.choices[0].finish_reason === null));
    assert.equal(await server.ended, 0);
  }));

test('a server that drains ends its streams and refuses new requests', withServer([],
  async (server) => {
    const client = server.client();
    const stream = await client.chat.completions.create(
      { ...story, max_tokens: 1500, stream: true });
    let refusal = null;
    const late = server.client({ maxRetries: 0 });
    const { chunks, error } = await read(stream, 10, async () => {
      server.terminate();
      await waitUntil('the server to drain', async () => {
        // A kept connection may be closed just as it is used again.
        const health = await fetch(`${server.origin}/health`).catch(() => null);
        return (await health?.text())?.includes('draining');
      });
      refusal = await late.chat.completions.create(story).catch((thrown) => thrown);
    });
    assert.equal(error, null);
    expectStream(chunks);
    assert.equal(entriesOf(chunks).length, 1500);
    assert.ok(refusal instanceof OpenAI.InternalServerError);
    assert.equal(refusal.status, 503);
    assert.equal(refusal.code, 'draining');
    expectForm('error', late.attempts[0].body);
    assert.equal(await server.ended, 0);
  }));

test('an abort frees what it held, streamed or not', withServer([], async (server) => {
  const client = server.client();
  const long = { ...story, max_tokens: 3900 };
  const stream = await client.chat.completions.create({ ...long, stream: true });
  const { chunks, error } = await read(stream, 5, () => stream.controller.abort());
  assert.equal(error, null, 'the SDK ends the iteration');
  assert.ok(chunks.length < 3900);
  await idle(server);
  const controller = new AbortController();
  const whole = client.chat.completions.create(long, { signal: controller.signal });
  await waitUntil('it to run', async () => await server.metric('skein_requests_running') === 1);
  controller.abort();
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await idle(server);
  const helper = client.chat.completions.stream(long);
  helper.once('chunk', () => helper.abort());
  await assert.rejects(helper.finalChatCompletion(), OpenAI.APIUserAbortError);
  await idle(server);
  assert.equal(await server.metric('skein_client_disconnects_total'), 3);
}));

test("the client's own timeout ends the request on the server", withServer([], async (server) => {
  const client = server.client({ timeout: 150, maxRetries: 1 });
  const error = await client.chat.completions.create({ ...story, max_tokens: 3900 })
    .catch((thrown) => thrown);
  assert.ok(error instanceof OpenAI.APIConnectionTimeoutError, `${error}`);
  assert.equal(client.attempts.length, 2);
  await idle(server);
  assert.equal(await server.metric('skein_client_disconnects_total'), 2);
}));
