// Random and mutated requests against a real server: no 500, no crash, each 400 names a field, and
// the streams beside them stay exact. Seeded: the same numbers again are the same requests.
//   node tests/client/random_requests.mjs [COUNT [SEED]]
import { pathToFileURL } from 'node:url';

import { expectForm } from './contract.mjs';
import { Server } from './server.mjs';

// mulberry32: 32 bits of state are enough to repeat a run.
function generator(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (count) => Math.floor(next() * count);
  return { next, below, pick: (list) => list[below(list.length)], chance: (p) => next() < p };
}

const numbers = [0, -0, 1, -1, 2, 8, 9, 20, 21, 0.5, -0.5, 1e-9, 100, 101, -100, 4095, 4096, 4097,
  2 ** 31 - 1, 2 ** 31, 2 ** 32, 2 ** 53, 2 ** 53 + 2, 2 ** 63, 2 ** 64, 1e300, -1e300];
const strings = ['', 'a', 'auto', 'none', 'required', 'text', 'json_object', 'coupled', 'enabled',
  'high', 'tiny-v41', '\u0000', '\ud800', '<｜User｜>', '</think>', '｜DSML｜', 'é漢🦊', 'x'.repeat(300)];
const fields = ['model', 'messages', 'prompt', 'max_tokens', 'max_completion_tokens', 'min_tokens',
  'temperature', 'top_p', 'top_k', 'min_p', 'presence_penalty', 'frequency_penalty',
  'repetition_penalty', 'seed', 'n', 'stop', 'include_stop_str_in_output', 'stop_token_ids',
  'bad_words', 'allowed_token_ids', 'ignore_eos', 'logit_bias', 'logprobs', 'top_logprobs',
  'prompt_logprobs', 'tools', 'tool_choice', 'parallel_tool_calls', 'response_format',
  'structured_outputs', 'guided_regex', 'thinking', 'reasoning_effort', 'stream', 'stream_options',
  'speculation', 'priority', 'cache_salt', 'user', 'metadata', 'store', 'echo', 'suffix', 'best_of',
  'return_token_ids', 'return_tokens_as_token_ids', 'add_special_tokens', 'chat_template',
  'chat_template_kwargs', 'tokens', 'system', 'a_field_of_tomorrow'];
const routes = ['/v1/chat/completions', '/v1/completions', '/v1/messages',
  '/v1/messages/count_tokens', '/tokenize', '/detokenize'];

const weather = { type: 'function', function: { name: 'get_weather', parameters: { type: 'object',
  properties: { location: { type: 'string' } }, required: ['location'] } } };

function validBody(route, random) {
  const text = random.pick(['Hi', 'What is the weather in Paris?', 'Tell me about rivers.']);
  const common = { max_tokens: 1 + random.below(12) };
  if (route === '/detokenize') return { tokens: [1, 2, 3] };
  if (route === '/tokenize') return { prompt: text };
  if (route === '/v1/completions') return { ...common, prompt: text };
  const body = { ...common, messages: [{ role: 'user', content: text }] };
  if (random.chance(0.3)) {
    body.messages.push({ role: 'assistant', content: 'Yes.' }, { role: 'user', content: 'Go on.' });
  }
  if (route === '/v1/chat/completions' && random.chance(0.2)) body.tools = [weather];
  if (route === '/v1/chat/completions' && random.chance(0.3)) body.thinking = { type: 'disabled' };
  return body;
}

function randomValue(random, depth = 0) {
  const kind = random.below(depth > 2 ? 4 : 6);
  if (kind === 0) return random.pick([null, true, false]);
  if (kind === 1 || kind === 3) return random.pick(numbers);
  if (kind === 2) return random.pick(strings);
  const count = random.below(4);
  if (kind === 4) return Array.from({ length: count }, () => randomValue(random, depth + 1));
  const names = ['type', 'role', 'content', 'text', 'name', 'function', 'enabled', 'include_usage',
    'max_draft_tokens', 'verification', 'parameters', '5', ...fields];
  return Object.fromEntries(Array.from({ length: count },
    () => [random.pick(names), randomValue(random, depth + 1)]));
}

// Replaces one value anywhere in it.
function mutate(value, random) {
  if (random.chance(0.3) || value === null || typeof value !== 'object') return randomValue(random);
  const keys = Object.keys(value);
  if (keys.length === 0) return randomValue(random);
  const key = random.pick(keys);
  const copy = Array.isArray(value) ? [...value] : { ...value };
  if (random.chance(0.15)) delete copy[key];
  else copy[key] = mutate(copy[key], random);
  return copy;
}

export function makeRequest(random) {
  const route = random.pick(routes);
  let body = validBody(route, random);
  const edits = random.below(4);
  for (let i = 0; i < edits; ++i) {
    if (random.chance(0.6)) body = { ...body, [random.pick(fields)]: randomValue(random) };
    else body = mutate(body, random) ?? {};
  }
  let text = JSON.stringify(body);
  if (random.chance(0.15)) {
    const at = random.below(text.length + 1);
    text = random.pick([text.slice(0, at),
      text.slice(0, at) + random.pick(['"', '{', ']', ',', '1e400', 'NaN', '\\', '\u0001']) +
      text.slice(at), text + text, '['.repeat(70)]);
  }
  return { route, text };
}

// Throws at what must not be. Returns the status.
async function send(server, { route, text }) {
  const response = await fetch(server.origin + route, { method: 'POST', body: text,
    headers: { 'content-type': 'application/json' } });
  const answer = await response.text();
  const { status } = response;
  const show = () => `${status} ${route} ${text.slice(0, 600)}\n${answer.slice(0, 600)}`;
  if (![200, 400, 404].includes(status)) throw new Error(`not expected: ${show()}`);
  if (status === 200) {
    if ((response.headers.get('content-type') ?? '').startsWith('text/event-stream')) {
      const ended = answer.endsWith('data: [DONE]\n\n') || answer.includes('message_stop');
      if (!ended || answer.includes('"error"')) throw new Error(`a stream: ${show()}`);
    } else {
      JSON.parse(answer);
    }
    return status;
  }
  const { error } = JSON.parse(answer);
  if (!error?.message) throw new Error(`no message: ${show()}`);
  if (route.startsWith('/v1/messages')) return status;
  expectForm('error', JSON.parse(answer));
  if (error.code !== 'invalid_json' && !error.param) throw new Error(`no field: ${show()}`);
  return status;
}

const story = { prompt: 'Tell me about rivers.', max_tokens: 300, temperature: 0.9, seed: 4,
  ignore_eos: true, logprobs: 1 };
const tell = async (server) => {
  const response = await fetch(`${server.origin}/v1/completions`, { method: 'POST',
    headers: { 'content-type': 'application/json' }, body: JSON.stringify(story) });
  return JSON.stringify((await response.json()).choices);
};

// Sends `count` requests, eight at a time, beside stories that are told again and again.
export async function run(count, seed) {
  const random = generator(seed);
  const requests = Array.from({ length: count }, () => makeRequest(random));
  const server = await Server.start(['--max-num-queued-reqs', '10000', '--max-num-queued-tokens',
    '100000000']);
  const statuses = {};
  let stories = 0;
  try {
    const wanted = await tell(server);
    let next = 0;
    let busy = true;
    const storyteller = (async () => {
      while (busy) {
        if (await tell(server) !== wanted) throw new Error('a story changed');
        ++stories;
      }
    })();
    const sender = async () => {
      while (next < requests.length) {
        const status = await send(server, requests[next++]);
        statuses[status] = (statuses[status] ?? 0) + 1;
      }
    };
    await Promise.all(Array.from({ length: 8 }, sender)).finally(() => { busy = false; });
    await storyteller;
    if (await server.metric('skein_epoch_changes_total') !== 0) throw new Error('a worker was lost');
  } finally {
    const end = await server.stop();
    if (end !== 0) throw new Error(`skein ended with ${end}:\n${server.output}`);
  }
  return { count, seed, statuses, stories };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [count = '10000', seed = '1'] = process.argv.slice(2);
  console.log(JSON.stringify(await run(Number(count), Number(seed))));
}
