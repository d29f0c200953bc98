// Thread: any.
// Must never: name another origin, or show the text of an answer as markup.
#include "coordinator/api/chat_page.h"

#include <string>

#include "coordinator/api/live_view.h"

namespace skein::coordinator {
namespace {

constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Skein</title>
<link rel="stylesheet" href="chat.css">
<script src="chat.js" defer></script>
<script src="live.js" defer></script>
</head>
<body>
<header>
<h1>Skein</h1>
<p id="runs" role="status">Asking what runs here…</p>
<details>
<summary>Settings</summary>
<label>Key, if one is needed <input id="key" type="password" autocomplete="off"></label>
<label><input id="thinking" type="checkbox" checked> Thinking</label>
<button id="fresh" type="button">New conversation</button>
</details>
<details id="live">
<summary>Live</summary>
<p id="state" aria-live="polite"></p>
<div id="plots"></div>
<template id="plot"><figure>
<figcaption></figcaption>
<svg viewBox="0 0 240 64" preserveAspectRatio="none" role="img">
<polyline class="curve0"/><polyline class="curve1"/>
</svg>
<p><span class="key0"></span> <span class="key1"></span></p>
</figure></template>
</details>
</header>
<main id="log" aria-live="polite"></main>
<form id="form">
<textarea id="text" rows="2" aria-label="Message" placeholder="Write a message" required></textarea>
<button id="send" type="submit">Send</button>
<button id="stop" type="button" hidden>Stop</button>
</form>
</body>
</html>
)html";

// Behind this a page under a root path has its base.
constexpr std::string_view kBasePlace = "<head>\n";

constexpr std::string_view kStyle = R"css(:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 46rem; min-height: 100vh; padding: 0 1rem;
  display: flex; flex-direction: column; font: 1rem/1.5 system-ui, sans-serif;
}
h1 { margin: 0.75rem 0 0; font-size: 1.25rem; }
header p { margin: 0; opacity: 0.75; }
header label { display: block; margin: 0.5rem 0; }
main { flex: 1; padding: 1rem 0; }
.message { margin: 0 0 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.user { padding: 0.5rem 0.75rem; border-radius: 0.5rem; background: rgba(128, 128, 128, 0.18); }
.error { color: #b3261e; }
.note { opacity: 0.65; font-size: 0.85rem; }
details { margin: 0.25rem 0; }
#plots { display: grid; gap: 0.75rem;
  grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); }
figure { margin: 0; }
figure p { font-size: 0.85rem; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: 4rem; background: rgba(128, 128, 128, 0.12); }
polyline { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.curve0 { stroke: #2a78d6; }
.curve1 { stroke: #c2620a; }
.key0 { color: #2a78d6; }
.key1 { color: #c2620a; }
form { position: sticky; bottom: 0; display: flex; gap: 0.5rem; padding: 0.75rem 0;
  background: Canvas; }
textarea { flex: 1; min-width: 0; font: inherit; padding: 0.5rem; resize: vertical; }
button { font: inherit; min-height: 2.75rem; padding: 0 1rem; }
)css";

constexpr std::string_view kScript = R"js('use strict';
const $ = (id) => document.getElementById(id);
let messages = [];
let running = null; // the AbortController of the answer that streams

function headers() {
  const key = $('key').value.trim();
  const all = { 'content-type': 'application/json' };
  if (key) all.authorization = 'Bearer ' + key;
  return all;
}

function add(parent, name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  parent.append(element);
  return element;
}

// What runs here: models, version, and whether it is ready.
async function describe() {
  try {
    const health = await fetch('health');
    const [models, version] = await Promise.all([
      fetch('v1/models', { headers: headers() }), fetch('version', { headers: headers() })]);
    if (!models.ok) {
      $('runs').textContent = models.status === 401
        ? 'This server needs a key: see Settings.' : (await models.json()).error.message;
      return;
    }
    const list = (await models.json()).data;
    const build = (await version.json()).version;
    $('runs').textContent = list.map((model) => model.id).join(', ') +
      ', ' + list[0].max_model_len + ' tokens, ' + (health.ok ? 'ready' : 'not ready') +
      (build ? ', version ' + build : '');
  } catch (error) {
    $('runs').textContent = 'The server does not answer.';
  }
}

// Calls `take` with each event of the body until [DONE]. A body that ends before it is an error.
async function readEvents(body, take) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error('the connection broke off');
    rest += decoder.decode(value, { stream: true });
    for (let end = rest.indexOf('\n\n'); end >= 0; end = rest.indexOf('\n\n')) {
      const event = rest.slice(0, end);
      rest = rest.slice(end + 2);
      if (!event.startsWith('data: ')) continue; // a keep-alive
      if (event === 'data: [DONE]') return;
      take(JSON.parse(event.slice(6)));
    }
  }
}

// Where an answer is shown: its reasoning folded, then its text.
function openAnswer() {
  const message = add($('log'), 'div', 'message', '');
  const fold = add(message, 'details', '', '');
  fold.hidden = true;
  add(fold, 'summary', '', 'Reasoning');
  const reasoning = add(fold, 'div', '', '');
  return { message, fold, reasoning, content: add(message, 'div', '', '') };
}

async function answer() {
  const shown = openAnswer();
  const conversation = messages; // "New conversation" begins another one
  running = new AbortController();
  $('send').hidden = true;
  $('stop').hidden = false;
  let content = '';
  try {
    const response = await fetch('v1/chat/completions', { method: 'POST', headers: headers(),
      signal: running.signal, body: JSON.stringify({ messages: conversation, stream: true,
        thinking: { type: $('thinking').checked ? 'enabled' : 'disabled' } }) });
    if (!response.ok) throw new Error((await response.json()).error.message);
    await readEvents(response.body, (event) => {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      if (!choice) return;
      if (choice.delta.reasoning_content) {
        shown.fold.hidden = false;
        shown.reasoning.textContent += choice.delta.reasoning_content;
      }
      content += choice.delta.content || '';
      shown.content.textContent = content;
      if (choice.finish_reason === 'length') add(shown.message, 'div', 'note', 'Cut by length.');
    });
  } catch (error) {
    if (error.name === 'AbortError') add(shown.message, 'div', 'note', 'Stopped.');
    else add(shown.message, 'div', 'error', error.message);
  }
  if (content) conversation.push({ role: 'assistant', content });
  running = null;
  $('send').hidden = false;
  $('stop').hidden = true;
}

$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('text').value.trim();
  if (!text || running) return;
  $('text').value = '';
  add($('log'), 'div', 'message user', text);
  messages.push({ role: 'user', content: text });
  return answer();
});
$('text').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $('form').requestSubmit();
  }
});
$('stop').addEventListener('click', () => { if (running) running.abort(); });
$('fresh').addEventListener('click', () => {
  if (running) running.abort();
  messages = [];
  $('log').replaceChildren();
});
$('key').addEventListener('change', describe);
describe();
)js";

struct File {
  std::string_view path, type, text;
};

const File kFiles[] = {{"/", "text/html; charset=utf-8", kPage},
                       {"/chat.css", "text/css; charset=utf-8", kStyle},
                       {"/chat.js", "text/javascript; charset=utf-8", kScript},
                       {"/live.js", "text/javascript; charset=utf-8", kLiveScript}};

}  // namespace

std::optional<protocol::HttpResponse> ChatPageFile(std::string_view path,
                                                   std::string_view root_path) {
  for (const File& file : kFiles) {
    if (file.path != path) continue;
    protocol::HttpResponse response;
    response.content_type = std::string(file.type);
    response.body = std::string(file.text);
    const bool has_base = !root_path.empty() && file.path == "/";
    // What the page names is below it, however the browser came to it.
    if (has_base) {
      response.body.insert(response.body.find(kBasePlace) + kBasePlace.size(),
                           "<base href=\"" + std::string(root_path) + "/\">\n");
    }
    response.headers.emplace_back(
        "Content-Security-Policy",
        std::string("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                    "form-action 'none'; base-uri ") +
            (has_base ? "'self'" : "'none'") + "; frame-ancestors 'none'");
    response.headers.emplace_back("X-Content-Type-Options", "nosniff");
    response.headers.emplace_back("Referrer-Policy", "no-referrer");
    response.headers.emplace_back("Cache-Control", "no-cache");
    return response;
  }
  return std::nullopt;
}

}  // namespace skein::coordinator
