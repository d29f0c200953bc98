// The short form of random_requests.mjs.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { run } from './random_requests.mjs';

test('random requests: no 500, no crash, fields are named, streams stay exact', async () => {
  const { statuses, stories } = await run(250, 1);
  assert.ok(statuses[200] >= 40 && statuses[400] >= 80, JSON.stringify(statuses));
  assert.ok(stories >= 1);
});
