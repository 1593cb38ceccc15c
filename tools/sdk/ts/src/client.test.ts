// Run by tools/test/clients against a running suite: WAITLIST_URL and WAITLIST_KEY name it.
// On the way, the answer to every first request of an operation is lost.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { audit, connect, signups, value, WaitlistError } from './client.js';

const baseUrl = process.env.WAITLIST_URL ?? '';
const apiKey = process.env.WAITLIST_KEY ?? '';
const owner = connect({ baseUrl, apiKey });
const anybody = connect({ baseUrl });

test('an owner and a list of people', async () => {
  const made = await value(owner.POST('/waitlists', { body: { name: 'Launch', settings: { referral_boost: 1 } } }));
  const { waitlists } = await value(owner.GET('/waitlists'));
  assert.deepEqual(waitlists.map((w) => w.waitlist_id), [made.waitlist_id], 'a repeated request made a second waitlist');
  const list = { path: { waitlist_id: made.waitlist_id } };

  const email = 'ann+a/b%20@example.com'; // with every character that a path has to escape
  const ann = await value(anybody.POST('/public/waitlists/{waitlist_id}/signups', { params: list, body: { email } }));
  assert.equal(ann.position, 1);
  const rows = Array.from({ length: 250 }, (_, i) => ({ email: `i${i}@example.com` }));
  const imported = await value(owner.POST('/waitlists/{waitlist_id}/import', { params: list, body: { signups: rows } }));
  assert.equal(imported.imported + imported.skipped, 250);
  const person = { params: { path: { ...list.path, email } } };
  const place = await value(anybody.GET('/public/waitlists/{waitlist_id}/signups/{email}', person));
  assert.equal(place.total_signups, 251);

  let at = 0;
  for await (const signup of signups(owner, made.waitlist_id)) {
    at += 1;
    assert.equal(signup.position, at);
  }
  assert.equal(at, 251);
  const actions = [];
  for await (const entry of audit(owner)) actions.push(entry.action);
  assert.ok(actions.includes('waitlist.created'), actions.join());

  await assert.rejects(anybody.POST('/auth/register', { body: { email: 'lost@example.com', password: 'correct horse battery' } }),
    (lost) => !(lost instanceof WaitlistError), 'a second registration was refused');

  await value(owner.DELETE('/waitlists/{waitlist_id}/signups/{email}', person));
  await assert.rejects(anybody.GET('/public/waitlists/{waitlist_id}/signups/{email}', person), { code: 'NOT_FOUND' });
});

test('refusals', async () => {
  const refused = async (call: Promise<unknown>): Promise<WaitlistError> => {
    try {
      await call;
    } catch (failure) {
      assert.ok(failure instanceof WaitlistError, String(failure));
      return failure;
    }
    return assert.fail('no refusal');
  };
  const nobody = await refused(anybody.GET('/waitlists'));
  assert.equal(nobody.code, 'AUTHENTICATION_REQUIRED');
  assert.equal(nobody.status, 401);
  assert.notEqual(nobody.requestId, '');
  const wrong = await refused(owner.POST('/waitlists', { body: { name: '' } }));
  assert.equal(wrong.code, 'VALIDATION_ERROR');
  assert.deepEqual(wrong.fields.map((f) => f.field), ['name']);
});

test('the key does not go to another host', async (t) => {
  const seen: string[] = [];
  const server = createServer((request, answer) => {
    seen.push(request.url ?? '');
    answer.writeHead(307, { Location: '/elsewhere' }).end();
  });
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  await assert.rejects(connect({ baseUrl: `http://127.0.0.1:${port}`, apiKey }).GET('/waitlists'), { status: 307 });
  assert.deepEqual(seen, ['/waitlists']);
});

const sent: Request[] = [];
// Returns a client whose requests get the answers one by one, and after them a success.
const client = (answers: (() => Response)[], options = {}) => {
  sent.length = 0;
  return connect({
    baseUrl, apiKey, ...options,
    fetch: async (request) => {
      sent.push(request);
      const next = answers[sent.length - 1];
      return next ? next() : new Response('{}', { status: 200, headers: { 'Content-Type': 'application/json' } });
    },
  });
};
const lost = () => { throw new TypeError('lost'); };
const refusal = (status: number, code: string, after = '') => () =>
  Response.json({ error: 'x', error_code: code, request_id: 'r' }, { status, headers: { 'Retry-After': after } });
const busy = refusal(429, 'RATE_LIMITED', '1');
const gone = refusal(404, 'NOT_FOUND');
const broken = () => new Response('no upstream', { status: 503, headers: { 'Retry-After': '1' } });

test('what is sent again', async () => {
  const body = { template_type: 'blast', subject_template: 'x', text_body_template: 'x' } as const;
  const person = { params: { path: { waitlist_id: 'w', email: 'a@example.com' } } };

  await value(client([lost, broken]).POST('/waitlists', { body: { name: 'x' } }));
  assert.equal(sent.length, 3);
  const keys = new Set(sent.map((r) => r.headers.get('Idempotency-Key')));
  assert.ok(keys.size === 1 && !keys.has(null), 'each attempt has a key of its own, or none');

  const begun = performance.now();
  await value(client([busy]).POST('/templates', { body }));
  assert.equal(sent.length, 2);
  assert.ok(performance.now() - begun >= 990, 'Retry-After was not kept');

  await assert.rejects(client([lost]).POST('/templates', { body }), TypeError);
  assert.equal(sent.length, 1, 'a second template may exist');
  await assert.rejects(client([busy], { maxWait: 500 }).GET('/waitlists'), { code: 'RATE_LIMITED', retryAfter: 1000 });
  assert.equal(sent.length, 1);
  await assert.rejects(client([broken, broken], { attempts: 2 }).GET('/waitlists'), { status: 503, code: '' });
  assert.equal(sent.length, 2);
  await assert.rejects(client([busy]).GET('/waitlists', { signal: AbortSignal.timeout(100) }), { name: 'TimeoutError' });
  assert.equal(sent.length, 1);

  await value(client([lost]).DELETE('/waitlists/{waitlist_id}/signups/{email}', person));
  assert.equal(sent.length, 2);
  await value(client([lost, gone]).DELETE('/waitlists/{waitlist_id}/signups/{email}', person));
  await value(client([lost, busy, gone]).DELETE('/waitlists/{waitlist_id}/signups/{email}', person));
  await assert.rejects(client([busy, gone]).DELETE('/waitlists/{waitlist_id}/signups/{email}', person), { code: 'NOT_FOUND' },
    'nobody was removed before');
});

// Every POST and PATCH of the contract, and one that it does not have.
test('what is sent again after a lost answer', async () => {
  const again = `
    POST /auth/logout
    POST /billing/preview
    POST /billing/webhook
    POST /domains/notifications/resend
    POST /domains/verify
    POST /public/waitlists/{waitlist_id}/link
    POST /public/waitlists/{waitlist_id}/signups
    POST /public/waitlists/{waitlist_id}/signups/{email}/verify
    POST /public/waitlists/{waitlist_id}/unsubscribe
    POST /waitlists
    POST /waitlists/{waitlist_id}/blasts
    POST /waitlists/{waitlist_id}/import
    PATCH /templates/{template_id}
    PATCH /waitlists/{waitlist_id}
    PATCH /waitlists/{waitlist_id}/signups/{email}
    PATCH /waitlists/{waitlist_id}/signups/{email}/position`;
  const never = `
    POST /auth/change-password
    POST /auth/forgot-password
    POST /auth/login
    POST /auth/refresh
    POST /auth/regenerate-api-key
    POST /auth/register
    POST /auth/resend-verification
    POST /auth/reset-password
    POST /auth/verify-email
    POST /billing/cancel
    POST /billing/checkout
    POST /billing/portal
    POST /billing/start-trial
    POST /public/waitlists/{waitlist_id}/delete-my-data
    POST /team/invite
    POST /templates
    POST /a-later-operation
    PATCH /a-later-operation`;
  const ask = async (operation: string, answer: () => Response): Promise<number> => {
    const [method = '', path = ''] = operation.trim().split(' ');
    const call = client([answer], { maxWait: 1 })[method as 'POST'] as (path: string, init: object) => Promise<unknown>;
    const params = { path: { waitlist_id: 'w', email: 'a/b@example.com', template_id: 't' } };
    await call(path, { params, body: {} }).catch(() => undefined);
    return sent.length;
  };
  const wrong: string[] = [];
  for (const [operations, times] of [[again, 2], [never, 1]] as const) {
    for (const operation of operations.trim().split('\n')) {
      for (const [name, answer] of Object.entries({ lost, broken: () => new Response('', { status: 502 }) })) {
        const got = await ask(operation, answer);
        if (got !== times) wrong.push(`${operation.trim()} (${name}): sent ${got} times`);
      }
      // The service said that it did nothing.
      const got = await ask(operation, () => new Response('', { status: 429 }));
      if (got !== 2) wrong.push(`${operation.trim()} (429): sent ${got} times`);
    }
  }
  assert.deepEqual(wrong, []);
});
