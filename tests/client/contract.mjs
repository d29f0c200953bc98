// The answers' form: openai_schema.json, checked with everything that is not named there refused.
import { readFileSync } from 'node:fs';

import Ajv from 'ajv/dist/2020.js';

const schema = JSON.parse(readFileSync(new URL('openai_schema.json', import.meta.url)));
const ajv = new Ajv({ strict: true, strictRequired: false, allErrors: true,
  allowUnionTypes: true });
ajv.addSchema(schema, 'openai');
const compiled = new Map();

// Throws unless `value` has the form `name` of the schema.
export function expectForm(name, value) {
  if (!compiled.has(name)) compiled.set(name, ajv.getSchema(`openai#/$defs/${name}`));
  const check = compiled.get(name);
  if (check(value)) return;
  throw new Error(`not a ${name}: ${ajv.errorsText(check.errors)}\n${JSON.stringify(value)}`);
}

// Throws unless these chunks of a chat are one well-formed stream of `choices` choices.
export function expectStream(chunks, { choices = 1, usage = false } = {}) {
  const { id, created, model } = chunks[0];
  const seen = Array.from({ length: choices }, () => ({ first: false, last: false }));
  for (const [at, chunk] of chunks.entries()) {
    expectForm('chat_chunk', chunk);
    const where = `chunk ${at}: ${JSON.stringify(chunk)}`;
    if (chunk.id !== id || chunk.created !== created || chunk.model !== model) {
      throw new Error(`another identity in ${where}`);
    }
    const isUsage = usage && at === chunks.length - 1;
    if (isUsage !== (chunk.choices.length === 0)) throw new Error(`choices of ${where}`);
    if (usage !== ('usage' in chunk)) throw new Error(`usage of ${where}`);
    if (isUsage !== Boolean(chunk.usage)) throw new Error(`usage of ${where}`);
    for (const choice of chunk.choices) {
      const state = seen[choice.index];
      if (state.last) throw new Error(`a choice that has ended in ${where}`);
      if (state.first === (choice.delta.role === 'assistant')) throw new Error(`role in ${where}`);
      state.first = true;
      state.last = choice.finish_reason !== null;
      if (state.last && Object.keys(choice.delta).length > 0) throw new Error(`delta of ${where}`);
    }
  }
  if (!seen.every((state) => state.last)) throw new Error('a choice has no finish_reason');
}

// The calls that the tool deltas of choice 0 spell; throws when they are not well formed.
export function joinCalls(chunks) {
  const calls = [];
  for (const chunk of chunks) {
    for (const delta of chunk.choices[0]?.delta.tool_calls ?? []) {
      if ('id' in delta) {
        if (delta.index !== calls.length) throw new Error(`a gap before call ${delta.index}`);
        expectForm('call_opening', delta);
        calls.push({ id: delta.id, name: delta.function.name, arguments: '' });
      } else {
        expectForm('call_fragment', delta);
        calls[delta.index].arguments += delta.function.arguments;
      }
    }
  }
  return calls;
}
