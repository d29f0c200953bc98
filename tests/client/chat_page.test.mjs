// The page at /, run without a browser: its script against a small document of our own, and a real
// server behind its requests. A browser's own checks of policy and layout are not part of it.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { runInNewContext } from 'node:vm';

import { Server, waitUntil } from './server.mjs';

let server;
before(async () => { server = await Server.start(); });
after(() => server?.stop());

// What the script uses of an element.
class Element {
  constructor(name = '') { Object.assign(this, { name, children: [], handlers: {}, text: '' }); }
  get textContent() { return this.text + this.children.map((child) => child.textContent).join(''); }
  set textContent(text) { this.text = text; this.children = []; }
  append(child) { this.children.push(child); }
  replaceChildren() { this.children = []; }
  addEventListener(event, handler) { this.handlers[event] = handler; }
}

async function openPage() {
  const page = await (await fetch(server.origin)).text();
  const elements = {};
  for (const [, id] of page.matchAll(/ id="([a-z]+)"/g)) elements[id] = new Element(id);
  elements.key.value = '';
  elements.thinking.checked = true;
  const document = { getElementById: (id) => elements[id] ?? assert.fail(`no element ${id}`),
    createElement: (name) => new Element(name) };
  runInNewContext(await (await fetch(`${server.origin}/chat.js`)).text(), { document,
    fetch: (path, init) => fetch(`${server.origin}/${path}`, init), AbortController, TextDecoder });
  const say = (text) => {
    elements.text.value = text;
    return elements.form.handlers.submit({ preventDefault() {} });
  };
  return { elements, say };
}

test('it says what runs', async () => {
  const { elements } = await openPage();
  await waitUntil('the description', () => elements.runs.textContent.includes('tiny-v41'));
  assert.match(elements.runs.textContent, /tiny-v41, 4096 tokens, ready, version /);
});

test('it chats: reasoning folded, then the text; then a second turn', async () => {
  const { elements, say } = await openPage();
  await say('What is the capital of Vietnam?');
  const [question, answer] = elements.log.children;
  assert.equal(question.textContent, 'What is the capital of Vietnam?');
  const [fold, content] = answer.children;
  assert.equal(fold.name, 'details');
  assert.equal(fold.hidden, false);
  assert.ok(fold.children[1].textContent.length > 0);
  assert.equal(content.textContent.length > 0, true);
  assert.equal(elements.send.hidden, false);
  elements.thinking.checked = false;
  await say('What is the capital of France?');
  assert.equal(elements.log.children.length, 4);
  const last = elements.log.children[3];
  assert.equal(last.children[0].hidden, true, 'no reasoning');
  assert.match(last.children[1].textContent, /Paris/);
});

test('a stop and an error are shown', async () => {
  const { elements, say } = await openPage();
  const stopped = say('Tell me about rivers.');
  assert.equal(elements.stop.hidden, false);
  elements.stop.handlers.click();
  await stopped;
  assert.match(elements.log.children[1].textContent, /Stopped/);
  assert.equal(elements.stop.hidden, true);
  elements.fresh.handlers.click();
  assert.equal(elements.log.children.length, 0);
  await say('word '.repeat(9000));
  assert.match(elements.log.children[1].textContent, /maximum context length is 4096/);
  await waitUntil('no request to be left', async () =>
    await server.metric('skein_requests_running') === 0);
});
