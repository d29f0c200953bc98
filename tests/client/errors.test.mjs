// Each status of the error table, the class that the SDK makes of it, and how often it tries again.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import OpenAI from 'openai';

import { expectForm } from './contract.mjs';
import { Server, waitUntil } from './server.mjs';

const model = 'tiny-v41';
const messages = [{ role: 'user', content: 'Tell me about rivers.' }];
const story = { model, messages, temperature: 0, max_tokens: 3000, ignore_eos: true };

// One sequence at a time, one in the queue; token 777 ends the worker.
let server;
before(async () => {
  server = await Server.start(['--max-num-seqs', '1', '--max-num-queued-reqs', '1',
    '--enable-faults', 'abort_on_token:777', '--restarts-max', '100',
    '--restart-backoff-max', '0.4']);
});
after(() => server?.stop());

// Makes the call and returns what the SDK threw, after checks of form and number of attempts.
async function refusal(expected, make, options = {}) {
  const client = server.client(options);
  const error = await make(client).then(() => assert.fail('not refused'), (thrown) => thrown);
  assert.ok(error instanceof expected.kind, `${error}`);
  assert.equal(error.status, expected.status);
  assert.equal(error.code, expected.code);
  assert.equal(error.type, expected.type);
  if ('param' in expected) assert.equal(error.param, expected.param);
  assert.equal(client.attempts.length, expected.attempts ?? 1, 'attempts');
  for (const attempt of client.attempts) {
    assert.equal(attempt.status, expected.status);
    expectForm('error', attempt.body);
    const cured = expected.attempts > 1 ? null : 'false';
    assert.equal(attempt.headers.get('x-should-retry'), cured);
  }
  assert.ok(error.requestID, 'x-request-id');
  return { error, attempts: client.attempts };
}

const invalid = { kind: OpenAI.BadRequestError, status: 400, type: 'invalid_request_error' };

test('400: a value out of range names its field', async () => {
  const { error } = await refusal({ ...invalid, code: 'invalid_value', param: 'temperature' },
    (client) => client.chat.completions.create({ model, messages, temperature: 3 }));
  assert.match(error.message, /temperature.*3.*0.*2/);
});

test('400: a nested field is named by its path', () => refusal(
  { ...invalid, code: 'invalid_value', param: 'messages[0].content' },
  (client) => client.chat.completions.create({ model, messages: [{ role: 'user', content: 7 }] })));

test('400: a field that this server does not serve', () => refusal(
  { ...invalid, code: 'unsupported_parameter', param: 'suffix' },
  (client) => client.completions.create({ model, prompt: 'x', suffix: 'y' })));

test('400: a body that is no JSON', () => refusal({ ...invalid, code: 'invalid_json', param: null },
  (client) => client.post('/chat/completions', { body: '{"model":',
    headers: { 'content-type': 'application/json' } })));

test('400: more than the context holds', async () => {
  const { error } = await refusal({ ...invalid, code: 'context_length_exceeded',
    param: 'prompt' },
    (client) => client.completions.create({ model, prompt: 'word '.repeat(5000), max_tokens: 1 }));
  assert.match(error.message, /maximum context length is 4096 tokens/);
  assert.equal(error.error.n_ctx, 4096);
  assert.ok(error.error.n_prompt_tokens > 4096);
});

const missing = { kind: OpenAI.NotFoundError, status: 404, type: 'not_found_error' };

test('404: a model that is not served', async () => {
  await refusal({ ...missing, code: 'model_not_found', param: 'model' },
    (client) => client.chat.completions.create({ model: 'gpt-4o', messages }));
  await refusal({ ...missing, code: 'model_not_found', param: 'model' },
    (client) => client.models.retrieve('gpt-4o'));
});

test('404: a route that is not there', () => refusal({ ...missing, code: 'route_not_found' },
  (client) => client.get('/nothing')));

test('400: what is not served yet', () => refusal({ ...invalid, code: 'unsupported_parameter',
  param: 'input' }, (client) => client.embeddings.create({ model, input: 'x' })));

test('405: a method that the route has not', () => refusal({ kind: OpenAI.APIError, status: 405,
  type: 'not_found_error', code: 'method_not_allowed' },
(client) => client.get('/chat/completions')));

test('415: a body of another type', () => refusal({ kind: OpenAI.APIError, status: 415,
  type: 'not_found_error', code: 'unsupported_media_type' },
(client) => client.post('/chat/completions', { body: 'x',
  headers: { 'content-type': 'text/plain' } })));

test('413: a body over its limit', () => refusal({ kind: OpenAI.APIError, status: 413,
  type: 'invalid_request_error', code: 'request_too_large' },
(client) => client.completions.create({ model, prompt: 'x'.repeat(9 << 20) })));

test('431: a head over its limit', () => refusal({ kind: OpenAI.APIError, status: 431,
  type: 'invalid_request_error', code: 'request_too_large' },
(client) => client.chat.completions.create({ model, messages },
  { headers: { 'x-padding': 'x'.repeat(17 << 10) } })));

test('408: a deadline before the first byte is tried again', async () => {
  const { attempts } = await refusal({ kind: OpenAI.APIError, status: 408, type: 'timeout_error',
    code: 'request_timeout', attempts: 2 },
  (client) => client.chat.completions.create(story, { headers: { 'x-request-timeout': '0.05' } }),
  { maxRetries: 1 });
  assert.ok(attempts[1].at > attempts[0].at);
  await idle();
});

const unavailable = { kind: OpenAI.InternalServerError, status: 503, type: 'server_error' };
const idle = () => waitUntil('no request to be left', async () =>
  await server.metric('skein_requests_running') === 0 &&
  await server.metric('skein_requests_waiting') === 0);

test('503: a full queue is tried again after Retry-After', async () => {
  const streams = [];
  const client = server.client();
  streams.push(await client.chat.completions.create({ ...story, stream: true }));
  await waitUntil('the first to run', async () =>
    await server.metric('skein_requests_running') === 1);
  streams.push(await client.chat.completions.create({ ...story, stream: true }));
  const { attempts } = await refusal({ ...unavailable, code: 'server_overloaded', attempts: 2 },
    (other) => other.chat.completions.create({ model, messages, max_tokens: 1 }),
    { maxRetries: 1 });
  const seconds = Number(attempts[0].headers.get('retry-after'));
  assert.ok(Number.isInteger(seconds) && seconds >= 1 && seconds <= 60);
  assert.ok(attempts[1].at - attempts[0].at >= seconds * 900, 'the SDK waits as told');
  for (const stream of streams) stream.controller.abort();
  await idle();
});

test('500: a prompt that ends its workers is not tried again', async () => {
  const deadly = { model, prompt: [5, 6, 777, 8], max_tokens: 20 };
  const expected = { kind: OpenAI.InternalServerError, status: 500, type: 'server_error',
    code: 'request_quarantined' };
  await refusal(expected, (client) => client.completions.create(deadly));
  await server.ready();
  await refusal(expected, (client) => client.completions.create(deadly));
});

test('a stream that is refused is an error before its first chunk', async () => {
  await refusal({ ...invalid, code: 'invalid_value', param: 'top_p' },
    (client) => client.chat.completions.create({ model, messages, top_p: 7, stream: true }));
});
