// A `skein serve` of this build with a directory of its own, on a free port of loopback. Its
// processes are known by the lines it prints and are ended by handle.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import OpenAI from 'openai';

export const programs = process.env.SKEIN_PROGRAMS ?? 'build/dev/bin';
const model = 'deploy/models/tiny-v41';

// Only a failure takes as long as this.
export const limitMs = 60_000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export async function waitUntil(what, done) {
  const end = Date.now() + limitMs;
  while (Date.now() < end) {
    const value = await done();
    if (value) return value;
    await pause(20);
  }
  throw new Error(`waited ${limitMs} ms for ${what}`);
}

async function freePort() {
  const probe = createServer();
  await new Promise((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

export class Server {
  // Starts with these flags and returns when /health is 200.
  static async start(flags = []) {
    const server = new Server();
    server.directory = mkdtempSync(join(tmpdir(), 'skein-client-'));
    server.port = await freePort();
    server.origin = `http://127.0.0.1:${server.port}`;
    server.output = '';
    server.child = spawn(join(programs, 'skein'), ['serve', model, '--port', String(server.port),
      '--backend', 'cpu', '--run-directory', server.directory, ...flags]);
    server.child.stdout.on('data', (text) => { server.output += text; });
    server.child.stderr.on('data', (text) => { server.output += text; });
    server.ended = new Promise((resolve) => {
      server.child.on('exit', (code, signal) => resolve(signal ?? code));
    });
    try {
      await server.ready();
    } catch (error) {
      server.child.kill('SIGKILL');
      throw error;
    }
    return server;
  }

  async ready() {
    await waitUntil('/health to be 200', async () => {
      if (this.child.exitCode !== null) throw new Error(`skein ended:\n${this.output}`);
      const health = await fetch(`${this.origin}/health`).catch(() => null);
      await health?.arrayBuffer();
      return health?.status === 200;
    });
  }

  // Kills the child of this name that was started last.
  kill(name) {
    const lines = this.output.split('\n').filter((line) =>
      line.includes('msg="child started"') && line.includes(`child=${name} `));
    process.kill(Number(/ pid=(\d+)/.exec(lines.at(-1))[1]), 'SIGKILL');
  }

  terminate() { this.child.kill('SIGTERM'); }

  // The sum of a metric over its labels.
  async metric(name) {
    const text = await (await fetch(`${this.origin}/metrics`)).text();
    const lines = text.split('\n').filter((line) => line.startsWith(name) &&
      (line[name.length] === ' ' || line[name.length] === '{'));
    if (lines.length === 0) throw new Error(`there is no metric ${name}`);
    return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0);
  }

  async stop() {
    this.terminate();
    const end = await this.ended;
    rmSync(this.directory, { recursive: true });
    return end;
  }

  // A client that records each HTTP answer it got: status, headers and, of errors, the body.
  client(options = {}) {
    const attempts = [];
    const client = new OpenAI({
      baseURL: `${this.origin}/v1`,
      apiKey: 'none',
      maxRetries: 2,
      timeout: limitMs,
      fetch: async (url, init) => {
        const attempt = { at: Date.now() };
        attempts.push(attempt);
        const response = await fetch(url, init);
        attempt.status = response.status;
        attempt.headers = response.headers;
        if (!response.ok) attempt.body = await response.clone().json();
        return response;
      },
      ...options,
    });
    return Object.assign(client, { attempts });
  }
}
