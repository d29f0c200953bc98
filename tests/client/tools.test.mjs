// Tool calls through the SDK: whole, streamed, in parallel, and its own loop of calls and results.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { expectForm, expectStream, joinCalls } from './contract.mjs';
import { Server } from './server.mjs';

const weather = { type: 'function', function: { name: 'get_weather',
  description: 'Get the current weather for a city.',
  parameters: { type: 'object', properties: { location: { type: 'string',
    description: 'The city.' } }, required: ['location'] } } };
const clock = { type: 'function', function: { name: 'get_time', description: 'The time.',
  parameters: { type: 'object', properties: {} } } };
const calendar = { type: 'function', function: { name: 'get_date', description: 'The date.',
  parameters: { type: 'object', properties: {} } } };
const base = { model: 'tiny-v41', temperature: 0, thinking: { type: 'disabled' }, max_tokens: 400 };
const call = { ...base, tools: [weather],
  messages: [{ role: 'user', content: 'What is the weather in Paris?' }] };

let server;
let client;
before(async () => { server = await Server.start(); client = server.client(); });
after(() => server?.stop());

const collect = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
};

// rule: R3.4, R3.5
test('a call comes whole and in pieces', async () => {
  const whole = await client.chat.completions.create(call);
  expectForm('chat_completion', whole);
  const [choice] = whole.choices;
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, null);
  assert.equal(choice.message.tool_calls.length, 1);
  assert.equal(choice.message.tool_calls[0].function.name, 'get_weather');
  assert.deepEqual(JSON.parse(choice.message.tool_calls[0].function.arguments),
    { location: 'Paris' });
  const chunks = await collect(await client.chat.completions.create({ ...call, stream: true }));
  expectStream(chunks);
  const calls = joinCalls(chunks);
  assert.deepEqual(calls.map(({ name, arguments: text }) => [name, text]),
    [['get_weather', choice.message.tool_calls[0].function.arguments]]);
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'tool_calls');
});

// The model seldom makes several calls by itself; a bias against closing the block makes it.
async function parallelCall() {
  const response = await fetch(`${server.origin}/tokenize`, { method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: '</', add_special_tokens: false }) });
  const { tokens } = await response.json();
  return { ...base, tools: [clock, calendar], tool_choice: 'required', temperature: 1, seed: 3,
    logit_bias: { [tokens[0]]: -10 },
    messages: [{ role: 'user', content: 'What is the time and the date?' }] };
}

// rule: R3.3, R3.5
test('calls in parallel have indices, ids and names of their own', async () => {
  const parallel = await parallelCall();
  const whole = await client.chat.completions.create(parallel);
  expectForm('chat_completion', whole);
  const expected = whole.choices[0].message.tool_calls;
  assert.equal(whole.choices[0].finish_reason, 'tool_calls');
  assert.ok(expected.length >= 2, JSON.stringify(expected));
  assert.equal(new Set(expected.map(({ function: { name } }) => name)).size, 2);
  assert.equal(new Set(expected.map(({ id }) => id)).size, expected.length);
  const chunks = await collect(await client.chat.completions.create({ ...parallel, stream: true }));
  expectStream(chunks);
  const calls = joinCalls(chunks);
  assert.deepEqual(calls.map(({ name, arguments: text }) => [name, text]),
    expected.map(({ function: { name, arguments: text } }) => [name, text]));
  for (const { arguments: text } of calls) assert.deepEqual(JSON.parse(text), {});
});

test('the stream helper reports each call', async () => {
  const parallel = await parallelCall();
  const done = [];
  const stream = client.chat.completions.stream(parallel);
  stream.on('tool_calls.function.arguments.done', ({ index, name, arguments: text }) => {
    done.push([index, name, text]);
  });
  const final = await stream.finalChatCompletion();
  expectForm('finish_reason', final.choices[0].finish_reason);
  const calls = final.choices[0].message.tool_calls;
  assert.ok(calls.length >= 2);
  assert.deepEqual(done, calls.map(({ function: f }, index) => [index, f.name, f.arguments]));
});

test('one call alone when parallel calls are off', async () => {
  const parallel = await parallelCall();
  const answer = await client.chat.completions.create({ ...parallel, parallel_tool_calls: false });
  assert.equal(answer.choices[0].message.tool_calls.length, 1);
  assert.equal(answer.choices[0].finish_reason, 'tool_calls');
});

test('a named function is called, none is not', async () => {
  const named = await client.chat.completions.create({ ...call, tools: [weather, clock],
    tool_choice: { type: 'function', function: { name: 'get_time' } } });
  assert.deepEqual(named.choices[0].message.tool_calls.map(({ function: f }) => f.name),
    ['get_time']);
  const none = await client.chat.completions.create({ ...call, tool_choice: 'none' });
  assert.equal(none.choices[0].message.tool_calls, undefined);
  assert.notEqual(none.choices[0].finish_reason, 'tool_calls');
});

test("the SDK's own loop calls the function and goes on with its result", async () => {
  const asked = [];
  const runner = client.chat.completions.runTools({ ...call, stream: true, tools: [{
    type: 'function', function: { ...weather.function, parse: JSON.parse,
      function: ({ location }) => { asked.push(location); return `Sunny in ${location}, 21 C.`; } },
  }] }, { maxChatCompletions: 2 });
  const content = await runner.finalContent();
  assert.deepEqual(asked, ['Paris']);
  assert.equal(typeof content, 'string');
  const results = runner.messages.filter(({ role }) => role === 'tool');
  assert.deepEqual(results.map(({ content: text }) => text), ['Sunny in Paris, 21 C.']);
});
