// Must never: name another origin, keep what it read longer than its plots show it, or run while
// the view is closed.
#include "coordinator/api/live_view.h"

namespace skein::coordinator {

constinit const std::string_view kLiveScript = R"js('use strict';
(() => {
const SAMPLES = 120; // seconds that a plot shows
const WIDTH = 240, HEIGHT = 64; // of the picture's own units

// The samples of the text form: name -> [[labels, value], ...].
function parse(text) {
  const families = new Map();
  for (const line of text.split('\n')) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] || '').matchAll(/([a-z_]+)="([^"]*)"/g)) {
      labels[name] = value;
    }
    if (!families.has(match[1])) families.set(match[1], []);
    families.get(match[1]).push([labels, Number(match[3])]);
  }
  const read = (name, chosen) => (families.get(name) || [])
    .filter(([labels]) => chosen(labels)).map(([, value]) => value);
  return {
    sum: (name, chosen = () => true) => read(name, chosen).reduce((all, value) => all + value, 0),
    max: (name) => Math.max(0, ...read(name, () => true)),
    states: (name) => (families.get(name) || []).filter(([, value]) => value > 0)
      .map(([labels, value]) => value + ' ' + labels.state).join(', ') || 'none',
  };
}

// What the counters did between two readings, per second; a restarted server begins at 0.
function rate(now, before, seconds, name, chosen) {
  const change = now.sum(name, chosen) - before.sum(name, chosen);
  return change < 0 ? 0 : change / seconds;
}

const failed = (labels) => /^5/.test(labels.code);
const refused = (labels) => /^4/.test(labels.code) && labels.code !== '499';

const PLOTS = [
  { title: 'Groups', lines: ['ready', 'not ready'], digits: 0,
    of: (now) => [now.sum('skein_groups', (labels) => labels.state === 'ready'),
      now.sum('skein_groups', (labels) => labels.state !== 'ready')] },
  { title: 'Requests', lines: ['running', 'waiting'], digits: 0,
    of: (now) => [now.sum('skein_requests_running'), now.sum('skein_requests_waiting')] },
  { title: 'Tokens per second', lines: ['generated', 'of prompts'], digits: 0,
    of: (now, before, seconds) => [rate(now, before, seconds, 'skein_generation_tokens_total'),
      rate(now, before, seconds, 'skein_prompt_tokens_total')] },
  { title: 'Drafts accepted', lines: ['%'], digits: 0, top: 100,
    of: (now, before) => {
      const drafted = rate(now, before, 1, 'skein_spec_draft_tokens_total');
      return [drafted ? 100 * rate(now, before, 1, 'skein_spec_accepted_tokens_total') / drafted
        : null];
    } },
  { title: 'Cache blocks in use', lines: ['% of the fullest engine'], digits: 0, top: 100,
    of: (now) => [100 * now.max('skein_kv_cache_usage_ratio')] },
  { title: 'Errors per second', lines: ['5xx', '4xx'], digits: 1,
    of: (now, before, seconds) => [rate(now, before, seconds, 'skein_http_requests_total', failed),
      rate(now, before, seconds, 'skein_http_requests_total', refused)] },
];

function build(plot) {
  const figure = document.getElementById('plot').content.firstElementChild.cloneNode(true);
  plot.caption = figure.querySelector('figcaption');
  plot.now = [...figure.querySelectorAll('span')].slice(0, plot.lines.length);
  plot.image = figure.querySelector('svg');
  plot.curves = [...figure.querySelectorAll('polyline')].slice(0, plot.lines.length);
  plot.history = [];
  document.getElementById('plots').append(figure);
}

function draw(plot, values) {
  plot.history.push(values);
  if (plot.history.length > SAMPLES) plot.history.shift();
  const top = plot.top || Math.max(1, ...plot.history.flat());
  const first = SAMPLES - plot.history.length;
  plot.curves.forEach((curve, line) => {
    const points = plot.history.map((sample, i) => sample[line] === null ? '' :
      ((first + i) * WIDTH / (SAMPLES - 1)).toFixed(1) + ',' +
      (HEIGHT - 2 - sample[line] / top * (HEIGHT - 4)).toFixed(1));
    curve.setAttribute('points', points.filter(Boolean).join(' '));
  });
  plot.caption.textContent = plot.title + ' (to ' + top.toFixed(plot.digits) + ')';
  plot.now.forEach((span, i) => {
    span.textContent = (values[i] === null ? '–' : values[i].toFixed(plot.digits)) + ' ' +
      plot.lines[i];
  });
  plot.image.setAttribute('aria-label',
    plot.title + ': ' + plot.now.map((span) => span.textContent).join(', '));
}

let before = null, at = 0;
async function look() {
  const state = document.getElementById('state');
  try {
    const key = document.getElementById('key').value.trim();
    const response = await fetch('metrics', { cache: 'no-store',
      headers: key ? { authorization: 'Bearer ' + key } : {} });
    if (!response.ok) {
      state.textContent = response.status === 401 || response.status === 403
        ? 'The live view needs a key with the route metrics: see Settings.'
        : 'The server answers ' + response.status + '.';
      before = null;
      return;
    }
    const now = parse(await response.text());
    const time = performance.now();
    if (before) PLOTS.forEach((plot) => draw(plot, plot.of(now, before, (time - at) / 1000)));
    before = now;
    at = time;
    state.textContent = 'Groups: ' + now.states('skein_groups') + '. Workers: ' +
      now.states('skein_workers') + '. Worker restarts: ' +
      now.sum('skein_worker_restarts_total') + '.';
  } catch (error) {
    state.textContent = 'The server does not answer.';
    before = null;
  }
}

const view = document.getElementById('live');
let timer = 0;
view.addEventListener('toggle', () => {
  if (!view.open) {
    clearTimeout(timer);
    before = null;
    return;
  }
  if (!PLOTS[0].image) PLOTS.forEach(build);
  const turn = async () => {
    await look();
    if (view.open) timer = setTimeout(turn, 1000);
  };
  clearTimeout(timer);
  turn();
});
})();
)js";

}  // namespace skein::coordinator
