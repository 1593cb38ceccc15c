// A client of the waitlist service's REST interface for servers: it keeps an API key,
// which never belongs into a browser.
//
//   const waitlist = connect({ baseUrl: 'https://api.example.com/v1', apiKey });
//   const list = await value(waitlist.POST('/waitlists', { body: { name: 'Launch' } }));
//   for await (const signup of signups(waitlist, list.waitlist_id)) …
//
// Paths, parameters, bodies and answers have the types of the contract. A request is sent
// again, at most `attempts` times in all, where that cannot do anything twice: always after
// 429, when the service did nothing, and after a lost connection or a 5xx where the
// operation is idempotent. The client waits as long as Retry-After says, else twice as long
// each time, with jitter. Every refusal is thrown as a WaitlistError.
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

// A new waitlist and a blast take an Idempotency-Key, so that sending them again is safe.
const keyed = /\/waitlists$|\/waitlists\/[^/]+\/blasts$/;
// A second request would do a second thing.
const once = /\/templates$|\/team\/invite$/;
const firstWait = 200;

/** Returns a client of one installation for one account, or for nobody. */
export function connect(options: Options): Waitlist {
  const { attempts = 4, maxWait = 10_000, fetch: send = (request: Request) => globalThis.fetch(request) } = options;
  const headers: Record<string, string> = {};
  if (options.apiKey) headers['X-Api-Key'] = options.apiKey;
  if (options.token) headers.Authorization = `Bearer ${options.token}`;
  if (options.account) headers['X-Account-Email'] = options.account;
  return createClient<paths>({ baseUrl: options.baseUrl, headers, fetch: repeat });

  async function repeat(request: Request): Promise<Response> {
    const path = new URL(request.url).pathname;
    const post = request.method === 'POST';
    if (post && keyed.test(path) && !request.headers.has('Idempotency-Key')) {
      request.headers.set('Idempotency-Key', crypto.randomUUID());
    }
    for (let attempt = 1; ; attempt += 1) {
      let failure: unknown;
      let again = !(post && once.test(path));
      let wait = Math.min(firstWait * 2 ** (attempt - 1), maxWait);
      wait = wait / 2 + Math.random() * wait / 2;
      try {
        const answer = await send(request.clone());
        if (answer.ok) return answer;
        const refusal = await WaitlistError.of(answer);
        if (refusal.status === 404 && request.method === 'DELETE' && attempt > 1) {
          return new Response(null, { status: 204 }); // the answer to an earlier attempt was lost
        }
        if (refusal.status === 429) again = true;
        else if (refusal.status < 500) again = false;
        wait = refusal.retryAfter || wait;
        failure = refusal;
      } catch (lost) {
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
