// A client of the waitlist service's REST interface for servers: it keeps an API key,
// which never belongs into a browser.
//
//   const waitlist = connect({ baseUrl: 'https://api.example.com/v1', apiKey });
//   const list = await value(waitlist.POST('/waitlists', { body: { name: 'Launch' } }));
//   for await (const signup of signups(waitlist, list.waitlist_id)) …
//
// Paths, parameters, bodies and answers have the types of the contract. A request is sent
// again, at most `attempts` times in all, where that cannot do anything twice: always after
// 429, when the service did nothing. After a lost connection or a 5xx nobody knows what it
// did: then a GET, a PUT and a DELETE are sent again, and of the others those that the table
// below allows. The client waits as long as Retry-After says, else twice as long each time,
// with jitter. Every refusal is thrown as a WaitlistError.
import { randomUUID } from 'node:crypto';
import createClient, { type Client } from 'openapi-fetch';
import type { components, paths } from './contract.js';

export type { components, paths };
export type ErrorCode = components['schemas']['ErrorCode'];
export type Signup = components['schemas']['Signup'];
export type AuditEntry = components['schemas']['AuditEntry'];
export type Waitlist = Client<paths>;

export interface Options {
  /** The address of the service with its version, as https://api.example.com/v1. */
  baseUrl: string;
  /** An account's API key. Without it and `token`, the client can do what the public can. */
  apiKey?: string;
  /** An ID token, which lives for an hour. */
  token?: string;
  /** The address of the owner to act for, in whose team the caller is. */
  account?: string;
  /** How often a request is sent at most; by default 4. */
  attempts?: number;
  /** The longest wait between two attempts, in milliseconds; by default 10,000. If the service asks for more, its answer is thrown. */
  maxWait?: number;
  /** Sends the requests in place of the global fetch. */
  fetch?: (request: Request) => Promise<Response>;
}

/** A refusal of the service, or, with an empty code, of something in front of it. */
export class WaitlistError extends Error {
  override name = 'WaitlistError';
  constructor(
    /** The HTTP status. */
    readonly status: number,
    readonly code: ErrorCode | '',
    message: string,
    /** Finds the request in the service's logs. */
    readonly requestId: string,
    /** What is wrong with fields of the request, such as settings.webhook_url. */
    readonly fields: readonly { field: string; message: string }[],
    /** How long the service asks to wait, in milliseconds; 0 if it does not. */
    readonly retryAfter: number,
  ) {
    super(message);
  }

  static async of(answer: Response): Promise<WaitlistError> {
    const seconds = Number(answer.headers.get('Retry-After'));
    const wait = Number.isFinite(seconds) && seconds > 0 ? seconds * 1000 : 0;
    try {
      const body = await answer.json() as components['schemas']['Error'];
      if (body.error_code) {
        return new WaitlistError(answer.status, body.error_code, body.error, body.request_id, body.errors ?? [], wait);
      }
    } catch {
      // Not the service: a gateway on the way.
    }
    return new WaitlistError(answer.status, '', answer.statusText, answer.headers.get('X-Request-Id') ?? '', [], wait);
  }
}

// What the contract says about a request that may have been carried out already: a second
// one changes nothing more ('again'), it gets the first answer by its Idempotency-Key
// ('key'), or it would act twice, or be refused because the first one succeeded ('never').
// An operation that the contract gets and this table does not have is a type error.
type Repeat = 'again' | 'key' | 'never';
type With<M extends 'post' | 'patch'> = { [P in keyof paths]: paths[P] extends Record<M, object> ? P : never }[keyof paths];

const posts: Record<With<'post'>, Repeat> = {
  '/auth/change-password': 'never', // the current password is another then
  '/auth/forgot-password': 'never', // a second mail
  '/auth/login': 'never', // a second session
  '/auth/logout': 'again',
  '/auth/refresh': 'never', // a token that is used twice ends the session
  '/auth/regenerate-api-key': 'never', // a second key ends the first
  '/auth/register': 'never',
  '/auth/resend-verification': 'never', // once in a minute
  '/auth/reset-password': 'never', // the token works once
  '/auth/verify-email': 'never', // the token works once
  '/billing/cancel': 'never', // there is nothing to cancel after a trial
  '/billing/checkout': 'never',
  '/billing/portal': 'never',
  '/billing/preview': 'again',
  '/billing/start-trial': 'never',
  '/billing/webhook': 'again', // events have ids
  '/domains/notifications/resend': 'again', // notifications have ids
  '/domains/verify': 'again', // the same records
  '/public/waitlists/{waitlist_id}/delete-my-data': 'never', // nobody is there then
  '/public/waitlists/{waitlist_id}/link': 'again', // one mail an hour
  '/public/waitlists/{waitlist_id}/signups': 'again', // an address signs up once
  '/public/waitlists/{waitlist_id}/signups/{email}/verify': 'again',
  '/public/waitlists/{waitlist_id}/unsubscribe': 'again',
  '/team/invite': 'never',
  '/templates': 'never',
  '/waitlists': 'key',
  '/waitlists/{waitlist_id}/blasts': 'key',
  '/waitlists/{waitlist_id}/import': 'again', // addresses on the list are skipped
};

// All of them say how something is to be, not by how much it changes.
const patches: Record<With<'patch'>, Repeat> = {
  '/templates/{template_id}': 'again',
  '/waitlists/{waitlist_id}': 'again',
  '/waitlists/{waitlist_id}/signups/{email}': 'again', // one credit
  '/waitlists/{waitlist_id}/signups/{email}/position': 'again',
};

const rules: Partial<Record<string, readonly (readonly [RegExp, Repeat])[]>> = { POST: byPath(posts), PATCH: byPath(patches) };

// Values in a path are escaped, so a parameter has no slash.
function byPath(table: Record<string, Repeat>): readonly (readonly [RegExp, Repeat])[] {
  return Object.entries(table).map(([path, repeat]) => [new RegExp(`${path.replace(/\{\w+\}/g, '[^/]+')}$`), repeat] as const);
}

function rule(request: Request): Repeat {
  const table = rules[request.method];
  if (!table) return 'again'; // by HTTP: GET, HEAD, PUT, DELETE
  const { pathname } = new URL(request.url);
  return table.find(([path]) => path.test(pathname))?.[1] ?? 'never';
}

const firstWait = 200;

/** Returns a client of one installation for one account, or for nobody. */
export function connect(options: Options): Waitlist {
  const { attempts = 4, maxWait = 10_000, fetch: send = (request: Request) => globalThis.fetch(request) } = options;
  const headers: Record<string, string> = {};
  if (options.apiKey) headers['X-Api-Key'] = options.apiKey;
  if (options.token) headers.Authorization = `Bearer ${options.token}`;
  if (options.account) headers['X-Account-Email'] = options.account;
  // The service redirects nobody, and fetch would send the API key along to another host.
  return createClient<paths>({ baseUrl: options.baseUrl, headers, fetch: repeat, redirect: 'manual' });

  async function repeat(request: Request): Promise<Response> {
    const repeatable = rule(request);
    if (repeatable === 'key' && !request.headers.has('Idempotency-Key')) {
      request.headers.set('Idempotency-Key', randomUUID());
    }
    let perhapsDone = false; // by an attempt whose answer was lost
    for (let attempt = 1; ; attempt += 1) {
      let failure: unknown;
      let again = repeatable !== 'never';
      let wait = Math.min(firstWait * 2 ** (attempt - 1), maxWait);
      wait = wait / 2 + Math.random() * wait / 2;
      try {
        const answer = await send(request.clone());
        if (answer.ok) return answer;
        const refusal = await WaitlistError.of(answer);
        if (refusal.status === 404 && request.method === 'DELETE' && perhapsDone) {
          return new Response(null, { status: 204 });
        }
        if (refusal.status === 429) again = true;
        else if (refusal.status < 500) again = false;
        else perhapsDone = true;
        wait = refusal.retryAfter || wait;
        failure = refusal;
      } catch (lost) {
        perhapsDone = true;
        failure = lost;
      }
      if (!again || attempt >= attempts || wait > maxWait || request.signal.aborted) throw failure;
      await pause(wait, request.signal);
    }
  }
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal.removeEventListener('abort', stop); resolve(); }, milliseconds);
    signal.addEventListener('abort', stop, { once: true });
  });
}

/** Returns the body of an answer. A refusal was thrown before. */
export async function value<T>(call: Promise<{ data?: T }>): Promise<T> {
  return (await call).data as T;
}

/**
 * Returns everybody on a waitlist in the order of the queue, a page of 100 at a time. Who is on it all the while comes
 * exactly once, whatever moves meanwhile.
 */
export async function* signups(waitlist: Waitlist, list: string): AsyncGenerator<Signup, void> {
  for (let key: string | null | undefined; key !== null;) {
    const query = key === undefined ? { limit: 100 } : { limit: 100, last_key: key };
    const page = await value(waitlist.GET('/waitlists/{waitlist_id}/signups', { params: { path: { waitlist_id: list }, query } }));
    yield* page.signups;
    key = page.last_key;
  }
}

/** Returns the audit trail of the account, the newest entry first. */
export async function* audit(waitlist: Waitlist): AsyncGenerator<AuditEntry, void> {
  for (let key: string | null | undefined; key !== null;) {
    const query = key === undefined ? { limit: 100 } : { limit: 100, last_key: key };
    const page = await value(waitlist.GET('/auth/audit', { params: { query } }));
    yield* page.entries;
    key = page.last_key;
  }
}
