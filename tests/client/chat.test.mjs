// Chats, models and completions: whole answers and streams, as the SDK reads them.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { expectForm, expectStream } from './contract.mjs';
import { Server } from './server.mjs';

const model = 'tiny-v41';
const question = [{ role: 'user', content: 'What is the capital of Vietnam?' }];
const plain = { model, messages: question, temperature: 0, thinking: { type: 'disabled' } };

let server;
let client;
before(async () => { server = await Server.start(); client = server.client(); });
after(() => server?.stop());

const collect = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
};
const contentOf = (chunks, index = 0) => chunks.flatMap((chunk) => chunk.choices)
  .filter((choice) => choice.index === index).map((choice) => choice.delta.content ?? '').join('');

test('models are listed and found by name', async () => {
  const list = await client.models.list();
  expectForm('model_list', { object: list.object, data: list.data });
  assert.equal(list.data[0].id, model);
  const found = await client.models.retrieve(model);
  expectForm('model', found);
  assert.deepEqual(found, list.data[0]);
});

test('a chat is answered', async () => {
  const { data, response, request_id } =
      await client.chat.completions.create(plain).withResponse();
  expectForm('chat_completion', data);
  assert.match(data.choices[0].message.content, /Hanoi/);
  assert.equal(data.choices[0].finish_reason, 'stop');
  assert.equal(data.model, model);
  assert.equal(request_id, response.headers.get('x-request-id'));
  assert.ok(request_id.length > 0);
});

test('a request id comes back', async () => {
  const { request_id } = await client.chat.completions
    .create(plain, { headers: { 'x-request-id': 'mine-17' } }).withResponse();
  assert.equal(request_id, 'mine-17');
});

test('reasoning stands beside the content', async () => {
  const answer = await client.chat.completions.create({ ...plain, thinking: undefined });
  expectForm('chat_completion', answer);
  const { message } = answer.choices[0];
  assert.ok(message.reasoning_content.length > 0);
  assert.doesNotMatch(message.content, /think>/);
  const { reasoning_tokens } = answer.usage.completion_tokens_details;
  assert.ok(reasoning_tokens > 0 && reasoning_tokens < answer.usage.completion_tokens);
  const stream = await collect(
    await client.chat.completions.create({ ...plain, thinking: undefined, stream: true }));
  expectStream(stream);
  assert.equal(stream[0].choices[0].delta.content, null, 'reasoning comes first');
  const reasoning = stream.map((chunk) => chunk.choices[0].delta.reasoning_content ?? '').join('');
  assert.equal(reasoning, message.reasoning_content);
  assert.equal(contentOf(stream), message.content);
});

test('a raw stream is the whole answer in pieces', async () => {
  const whole = await client.chat.completions.create({ ...plain, logprobs: true, top_logprobs: 3 });
  const chunks = await collect(await client.chat.completions.create({ ...plain, logprobs: true,
    top_logprobs: 3, stream: true, stream_options: { include_usage: true } }));
  expectStream(chunks, { usage: true });
  assert.equal(contentOf(chunks), whole.choices[0].message.content);
  const entries = chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []);
  assert.deepEqual(entries, whole.choices[0].logprobs.content);
  const { skein, ...usage } = chunks.at(-1).usage;
  const { skein: _, ...expected } = whole.usage;
  assert.deepEqual(usage, expected);
  assert.ok(skein.steps > 0);
});

test('the stream helper puts the same answer together', async () => {
  const whole = await client.chat.completions.create(plain);
  const stream = client.chat.completions.stream({ ...plain,
    stream_options: { include_usage: true } });
  let deltas = '';
  let refused = null;
  stream.on('content.delta', ({ delta, snapshot }) => {
    deltas += delta;
    assert.equal(snapshot, deltas);
  });
  stream.on('error', (error) => { refused = error; });
  const final = await stream.finalChatCompletion();
  assert.equal(refused, null);
  assert.equal(deltas, whole.choices[0].message.content);
  assert.equal(final.choices[0].message.content, deltas);
  assert.equal(final.choices[0].finish_reason, 'stop');
  const usage = await stream.totalUsage();
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
});

test('choices of one request keep apart', async () => {
  const call = { ...plain, n: 3, temperature: 1, seed: 11 };
  const whole = await client.chat.completions.create(call);
  expectForm('chat_completion', whole);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2]);
  const chunks = await collect(await client.chat.completions.create({ ...call, stream: true }));
  expectStream(chunks, { choices: 3 });
  for (const choice of whole.choices) {
    assert.equal(contentOf(chunks, choice.index), choice.message.content);
  }
});

test('usage on every chunk grows to that of the whole', async () => {
  const chunks = await collect(await client.chat.completions.create({ ...plain, stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true } }));
  for (const chunk of chunks) expectForm('usage', chunk.usage);
  const counts = chunks.map((chunk) => chunk.usage.completion_tokens);
  assert.deepEqual(counts, counts.toSorted((a, b) => a - b));
  assert.equal(counts[0], 0);
  const whole = await client.chat.completions.create(plain);
  assert.equal(counts.at(-1), whole.usage.completion_tokens);
});

// rule: R4.3, R4.5
test('logprobs are those of the tokens, in the form of the SDK', async () => {
  const answer = await client.chat.completions.create({ ...plain, logprobs: true,
    top_logprobs: 20 });
  expectForm('chat_completion', answer);
  const { content } = answer.choices[0].logprobs;
  // The end of the answer is counted and has no entry.
  assert.equal(content.length, answer.usage.completion_tokens - 1);
  for (const entry of content) {
    assert.equal(entry.top_logprobs.length, 20);
    assert.equal(entry.top_logprobs[0].logprob, entry.logprob, 'greedy takes the likeliest');
    const sum = entry.top_logprobs.reduce((total, top) => total + Math.exp(top.logprob), 0);
    assert.ok(sum <= 1 + 1e-5, `the likeliest twenty have ${sum}`);
  }
  const text = Buffer.concat(content.map((entry) => Buffer.from(entry.bytes))).toString();
  assert.equal(text, answer.choices[0].message.content);
});

test('stops and lengths end as they should', async () => {
  const whole = await client.chat.completions.create(plain);
  const text = whole.choices[0].message.content;
  const stop = text.slice(-6, -1);
  const stopped = await client.chat.completions.create({ ...plain, stop: [stop] });
  assert.equal(stopped.choices[0].message.content, text.slice(0, text.indexOf(stop)));
  assert.equal(stopped.choices[0].finish_reason, 'stop');
  assert.equal(stopped.choices[0].stop_reason, stop);
  const cut = await client.chat.completions.create({ ...plain, max_completion_tokens: 2 });
  assert.equal(cut.choices[0].finish_reason, 'length');
  assert.equal(cut.usage.completion_tokens, 2);
});

test('a conversation goes on', async () => {
  const messages = [...question, { role: 'assistant', content: 'Hanoi.' },
    { role: 'user', content: [{ type: 'text', text: 'What is the capital of France?' }] }];
  const answer = await client.chat.completions.create({ ...plain,
    messages: [{ role: 'developer', content: 'Answer briefly.' }, ...messages] });
  expectForm('chat_completion', answer);
  assert.match(answer.choices[0].message.content, /Paris/);
});

test('completions: whole, streamed, several prompts, echo', async () => {
  const call = { model, prompt: 'The capital of France is', max_tokens: 12, temperature: 0,
    logprobs: 2 };
  const whole = await client.completions.create(call);
  expectForm('completion', whole);
  const [choice] = whole.choices;
  assert.equal(choice.finish_reason, 'length');
  assert.equal(choice.logprobs.tokens.length, 12);
  assert.equal(choice.logprobs.tokens.join(''), choice.text);
  assert.equal(choice.logprobs.text_offset[0], 0);
  const chunks = await collect(await client.completions.create({ ...call, stream: true,
    stream_options: { include_usage: true } }));
  for (const chunk of chunks) expectForm('completion_chunk', chunk);
  assert.equal(chunks.flatMap((chunk) => chunk.choices).map((part) => part.text).join(''),
    choice.text);
  assert.deepEqual(chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.token_logprobs ?? []),
    choice.logprobs.token_logprobs);
  assert.equal(chunks.at(-1).usage.completion_tokens, 12);
  const list = await client.completions.create({ ...call, prompt: [call.prompt, 'A river'],
    logprobs: undefined, echo: true });
  expectForm('completion', list);
  assert.equal(list.choices[0].text, call.prompt + choice.text);
  assert.ok(list.choices[1].text.startsWith('A river'));
  const ids = await client.completions.create({ ...call, prompt: [[0, 304, 223]],
    return_token_ids: true });
  expectForm('completion', ids);
  assert.deepEqual(ids.choices[0].prompt_token_ids, [0, 304, 223]);
  assert.equal(ids.choices[0].token_ids.length, 12);
});

// rule: R2.1
test('what the SDK may send beside it changes nothing', async () => {
  const whole = await client.chat.completions.create({ ...plain, seed: 3 });
  const decorated = await client.chat.completions.create({ ...plain, seed: 3, user: 'someone',
    metadata: { k: 'v' }, store: false, service_tier: 'auto', safety_identifier: 's',
    prompt_cache_key: 'k', response_format: { type: 'text' }, n: 1, stop: null, tools: [],
    logit_bias: {}, a_field_of_tomorrow: 1 });
  assert.deepEqual(decorated.choices, whole.choices);
  assert.ok(await server.metric('skein_http_unknown_fields_total') >= 1);
});
