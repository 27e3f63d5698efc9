/** Sends requests, with retries and deadlines, and reads responses. */
import { toBase64 } from "./encoding.js";
import { kindOfStatus, PqkeepError } from "./errors.js";
import type { Settings } from "./settings.js";
import { asObject, own, shaped, ShapeError, type JsonObject, type Row } from "./shapes.js";
import { RuleWarnings } from "./warnings.js";

const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 5_000;
/** The service responds within 10 seconds, if only with an error. */
const ATTEMPT_MILLISECONDS = 15_000;
const LONGEST_RESPONSE = 64 * 1024 * 1024;
const LONGEST_WAIT_SECONDS = 10 ** 9 - 1;
/** Node or Deno, which let a program choose these headers. A browser asks for encodings itself. */
const IS_NODE = globalThis.process?.versions?.node !== undefined;
/** The encodings of a response. Several at once could expand it without limit. */
const ENCODINGS = new Set(["", "identity", ...(IS_NODE ? [] : ["gzip", "br", "zstd"])]);

/** The options of one call. */
export interface CallOptions {
  /** Ends the call. It then rejects with the signal's reason. */
  readonly signal?: AbortSignal;
  /** Milliseconds for the call, with all its attempts. The default is the client's. */
  readonly timeout?: number;
}

/** One request, with all its attempts. */
interface Exchange {
  readonly row: Row;
  readonly url: string;
  readonly requestId: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | undefined;
  readonly endsAt: number;
  readonly signal: AbortSignal | undefined;
  /** Where the body of a successful response goes, in place of memory. */
  readonly sink: Sink | undefined;
}

/** Takes a body piece by piece. */
export interface Sink {
  /** True if it has taken something. The call is not repeated then. */
  readonly isBegun: boolean;
  take(piece: Uint8Array): Promise<void>;
}

export class Transport {
  readonly #settings: Settings;
  readonly #warnings: RuleWarnings;

  constructor(settings: Settings) {
    this.#settings = settings;
    this.#warnings = new RuleWarnings(settings.onRuleWarning);
  }

  /** Runs a call, with retries, and returns the response's data. Throws PqkeepError. */
  async run(
    row: Row,
    fields: JsonObject,
    apiKey: string | undefined,
    options: CallOptions,
    sink?: Sink,
  ): Promise<unknown> {
    const exchange = { ...this.#exchange(row, fields, apiKey, options), sink };
    let last: PqkeepError | undefined;
    for (let made = 0; ; made += 1) {
      options.signal?.throwIfAborted();
      try {
        return await this.#attempt(exchange, fields);
      } catch (error) {
        if (!(error instanceof PqkeepError)) throw error;
        const pause = this.#pauseAfter(error, made, exchange.endsAt);
        // an attempt that the deadline cut short says less than the one before
        if (pause === undefined || sink?.isBegun === true) throw error.kind === "deadline-exceeded" ? (last ?? error) : error;
        last = error;
        await paused(pause, options.signal);
      }
    }
  }

  #exchange(row: Row, fields: JsonObject, apiKey: string | undefined, options: CallOptions): Omit<Exchange, "sink"> {
    const { path, query, rest } = placed(row, fields);
    const requestId = crypto.randomUUID();
    const headers: Record<string, string> = { Accept: "application/json", "X-Request-ID": requestId };
    if (apiKey !== undefined) headers["X-API-Key"] = apiKey;
    if (row.isIdempotent) headers["Idempotency-Key"] = crypto.randomUUID();
    if (row.hasBody) headers["Content-Type"] = "application/json";
    if (IS_NODE) {
      headers["User-Agent"] = "pqkeep-typescript";
      headers["Accept-Encoding"] = "identity";
    }
    return {
      row,
      url: this.#settings.url + path + query,
      requestId,
      headers,
      body: row.hasBody ? jsonOf(rest) : undefined,
      endsAt: performance.now() + (options.timeout ?? this.#settings.timeout),
      signal: options.signal,
    };
  }

  /** Returns milliseconds until the next attempt, or undefined after the last one. */
  #pauseAfter(error: PqkeepError, made: number, endsAt: number): number | undefined {
    if (!error.isRetryable || made >= this.#settings.retries) return undefined;
    const usual = Math.min(FIRST_PAUSE * 2 ** made, LONGEST_PAUSE);
    const jitter = (Math.random() * usual) / 2;
    const pause = error.retryAfter === undefined ? usual / 2 + jitter : error.retryAfter * 1000 + jitter;
    return performance.now() + pause < endsAt ? pause : undefined;
  }

  async #attempt(exchange: Exchange, fields: JsonObject): Promise<unknown> {
    const watch = new Watch(exchange);
    try {
      const response = await this.#settings.fetch(exchange.url, {
        method: exchange.row.method,
        headers: exchange.headers,
        ...(exchange.body === undefined ? {} : { body: exchange.body }),
        redirect: "manual", // a redirect would take the API key along
        credentials: "omit",
        cache: "no-store",
        referrerPolicy: "no-referrer",
        signal: watch.signal,
      });
      try {
        return await this.#read(response, exchange, fields, watch);
      } finally {
        if (!response.bodyUsed) await response.body?.cancel().catch(() => undefined);
      }
    } catch (error) {
      if (error instanceof PqkeepError) throw error;
      exchange.signal?.throwIfAborted();
      throw watch.isOver ? tooLate(exchange) : connectionFailed(error, exchange);
    } finally {
      watch.end();
    }
  }

  async #read(response: Response, exchange: Exchange, fields: JsonObject, watch: Watch): Promise<unknown> {
    const { row, requestId } = exchange;
    if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
      throw malformed("the address redirects: if the target is the service, use that address", response, requestId);
    }
    const encoding = (response.headers.get("Content-Encoding") ?? "").trim().toLowerCase();
    if (!ENCODINGS.has(encoding)) {
      throw malformed("the Content-Encoding of the response was not requested", response, requestId);
    }
    this.#warnings.inHeaders(response.headers);
    const bytes = await bodyOf(response, requestId, watch, response.ok ? exchange.sink : undefined).catch((error: unknown) => {
      if (error instanceof PqkeepError || watch.signal.aborted || encoding === "" || encoding === "identity") throw error;
      throw malformed("the Content-Encoding of the response is wrong", response, requestId);
    });
    if (response.ok && (row.form === "text" || row.form === "lines")) {
      const text = textOf(bytes);
      if (text === undefined) throw malformed("the response is not UTF-8", response, requestId);
      return text;
    }
    const value = parsed(bytes) ?? {};
    if (!response.ok) throw refusal(response, value, bytes, requestId);
    const data = row.form === "envelope" ? own(value, "data") : value;
    if (asObject(data) === undefined || Object.keys(value).length === 0) {
      throw malformed(`the response is not from pqkeep${formOf(bytes, response)}`, response, requestId);
    }
    this.#warnings.inItems(data);
    checkKeyName(fields, data as JsonObject, requestId);
    checkItems(fields, data as JsonObject, requestId);
    try {
      return shaped(data, row.data);
    } catch (error) {
      if (!(error instanceof ShapeError)) throw error;
      throw new PqkeepError("malformed-response", error.message, {
        field: error.field,
        requestId: textIn(value, "request_id") ?? requestId,
      });
    }
  }
}

/** Aborts an attempt that gets nothing for 15 seconds, that is over, or that the caller ends. */
class Watch {
  readonly #controller = new AbortController();
  readonly #exchange: Exchange;
  #timer: ReturnType<typeof setTimeout> | undefined;
  isOver = false;

  constructor(exchange: Exchange) {
    this.#exchange = exchange;
    exchange.signal?.addEventListener("abort", this.#abort);
    this.restart();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Waits for the next piece. */
  restart(): void {
    clearTimeout(this.#timer);
    const left = this.#exchange.endsAt - performance.now();
    this.#timer = setTimeout(this.#expire, Math.max(Math.min(left, ATTEMPT_MILLISECONDS), 1));
  }

  /** Waits for nothing. */
  pause(): void {
    clearTimeout(this.#timer);
  }

  /** Waits for the next piece, beyond the call's deadline too. */
  continue(): void {
    this.#timer = setTimeout(this.#expire, ATTEMPT_MILLISECONDS);
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#exchange.signal?.removeEventListener("abort", this.#abort);
  }

  readonly #abort = (): void => {
    this.#controller.abort(this.#exchange.signal?.reason);
  };

  readonly #expire = (): void => {
    this.isOver = true;
    this.#controller.abort();
  };
}

/** Returns the path and the query of a request, and the fields that are left for the body. */
function placed(row: Row, fields: JsonObject): { path: string; query: string; rest: JsonObject } {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null);
  const rest = new Map(given);
  const path = row.path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const text = String(rest.get(name) ?? "");
    rest.delete(name);
    if (text === "" || text === "." || text === "..") {
      throw new PqkeepError("invalid-request", `${name} cannot be empty, . or ..`, { field: name });
    }
    return percentEncoded(text, name);
  });
  const query: string[] = [];
  for (const [name, value] of rest) {
    if (!row.query.includes(name) && row.hasBody) continue;
    query.push(`${percentEncoded(name, name)}=${percentEncoded(String(value), name)}`);
    rest.delete(name);
  }
  return {
    path,
    query: query.length === 0 ? "" : `?${query.join("&")}`,
    rest: Object.fromEntries(rest),
  };
}

function percentEncoded(text: string, field: string): string {
  try {
    return encodeURIComponent(text);
  } catch {
    throw new PqkeepError("invalid-request", `${field} is not valid Unicode: it has half of a surrogate pair`, { field });
  }
}

function jsonOf(fields: JsonObject): string {
  return JSON.stringify(fields, function (this: JsonObject, name: string, value: unknown) {
    const original = this[name]; // a Buffer has become an object here
    return original instanceof Uint8Array ? toBase64(original) : value;
  });
}

async function bodyOf(response: Response, requestId: string, watch: Watch, sink: Sink | undefined): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  while (reader !== undefined) {
    const { done, value } = await reader.read();
    if (done) break;
    if (sink !== undefined) {
      watch.pause(); // the sink may take its time
      await sink.take(value);
      watch.continue();
      continue;
    }
    watch.restart();
    size += value.length;
    if (size > LONGEST_RESPONSE) {
      await reader.cancel().catch(() => undefined);
      throw malformed("the response is too long", response, requestId);
    }
    pieces.push(value);
  }
  const joined = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    joined.set(piece, at);
    at += piece.length;
  }
  return joined;
}

function textOf(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

/** Returns the object of a JSON text, or undefined. A name that occurs twice is no JSON here. */
function parsed(bytes: Uint8Array): JsonObject | undefined {
  const text = textOf(bytes) ?? "";
  try {
    const value = asObject(JSON.parse(text));
    return repeatsName(text) ? undefined : value;
  } catch {
    return undefined;
  }
}

/** Returns true if an object in a valid JSON text has a name twice. */
function repeatsName(text: string): boolean {
  const open: (Set<string> | undefined)[] = []; // the names of each open object; arrays have none
  let isName = false;
  for (let at = 0; at < text.length; at += 1) {
    switch (text[at]) {
      case "{":
        open.push(new Set());
        isName = true;
        break;
      case "[":
        open.push(undefined);
        isName = false;
        break;
      case "}":
      case "]":
        open.pop();
        isName = false;
        break;
      case ",":
        isName = open.at(-1) !== undefined;
        break;
      case '"': {
        const end = endOfString(text, at);
        const names = open.at(-1);
        if (isName && names !== undefined) {
          const name = JSON.parse(text.slice(at, end + 1)) as string;
          if (names.has(name)) return true;
          names.add(name);
          isName = false;
        }
        at = end;
        break;
      }
      default:
    }
  }
  return false;
}

/** Returns the place of the quotation mark that ends the string at a place. */
function endOfString(text: string, start: number): number {
  let end = start;
  for (;;) {
    end = text.indexOf('"', end + 1);
    let slashes = 0;
    while (text[end - 1 - slashes] === "\\") slashes += 1;
    if (end < 0 || slashes % 2 === 0) return end < 0 ? text.length : end;
  }
}

/** Returns the error of a response. If the body is not pqkeep's, the status decides. */
function refusal(response: Response, value: JsonObject, bytes: Uint8Array, sent: string): PqkeepError {
  const error = asObject(own(value, "error")) ?? {};
  const requestId = textIn(value, "request_id") ?? sent;
  const code = textIn(error, "error_code");
  const form = formOf(bytes, response);
  const failure = new PqkeepError(
    kindOfStatus(response.status),
    textIn(error, "message") ?? (form === "" ? "the service gave no reason" : `the response is not from pqkeep${form}`),
    {
      code,
      status: response.status,
      field: textIn(error, "field"),
      requestId,
      retryAfter: secondsIn(response.headers),
    },
  );
  if (code === undefined && !failure.isRetryable) {
    return malformed(`the response is not from pqkeep${form}`, response, requestId);
  }
  return failure;
}

/** Returns the seconds in Retry-After, which is a number or a date, compared with the response's own. */
function secondsIn(headers: Headers): number | undefined {
  const text = (headers.get("Retry-After") ?? "").trim();
  if (/^\d+$/.test(text)) return Math.min(Number(text), LONGEST_WAIT_SECONDS);
  const ends = Date.parse(text);
  if (Number.isNaN(ends) || !/[A-Za-z]/.test(text)) return undefined;
  const begins = Date.parse(headers.get("Date") ?? "");
  const seconds = Math.ceil((ends - (Number.isNaN(begins) ? Date.now() : begins)) / 1000);
  return Math.min(Math.max(seconds, 0), LONGEST_WAIT_SECONDS);
}

const ALIASES: Readonly<Record<string, string>> = { "ML-KEM-768": "Kyber768", "ML-DSA-65": "Dilithium3" };

function canonical(value: unknown): unknown {
  return typeof value === "string" && Object.hasOwn(ALIASES, value) ? ALIASES[value] : value;
}

/** Throws PqkeepError if a response is about another key than the request. */
function checkKeyName(fields: JsonObject, data: JsonObject, requestId: string): void {
  const to = asObject(fields["to"]); // re-encryption: to another version of the same key, where it is {}
  const asked: JsonObject = to === undefined ? fields : { ...fields, key_version: undefined, ...to };
  for (const field of ["algorithm", "key_version", "keyring"]) {
    const wanted = own(asked, field) ?? undefined;
    const given = own(data, field) ?? undefined;
    if (wanted !== undefined && given !== undefined && canonical(wanted) !== canonical(given)) {
      const message = "the response is about another key than the request";
      throw new PqkeepError("malformed-response", message, { field, requestId });
    }
  }
}

/** Throws PqkeepError if the results of a batch are not those of its items. */
function checkItems(fields: JsonObject, data: JsonObject, requestId: string): void {
  const { items, ...common } = fields;
  const results = own(data, "results");
  if (!Array.isArray(items) || !Array.isArray(results)) return;
  if (results.length !== items.length) {
    const message = "the number of results differs from that of the items";
    throw new PqkeepError("malformed-response", message, { field: "results", requestId });
  }
  items.forEach((item: JsonObject, place) => {
    const made = asObject(own(asObject(results[place]) ?? {}, "data"));
    if (made !== undefined) checkKeyName({ ...common, ...item }, made, requestId);
  });
}

function textIn(object: JsonObject, name: string): string | undefined {
  const value = own(object, name);
  return typeof value === "string" ? value : undefined;
}

function formOf(bytes: Uint8Array, response: Response): string {
  if (bytes.length === 0) return ": the body is empty";
  const isPage = bytes[0] === 0x3c || (response.headers.get("Content-Type") ?? "").includes("html");
  return isPage ? ": it is a web page of a proxy, a sign-in page or another service" : "";
}

function malformed(message: string, response: Response, requestId: string): PqkeepError {
  return new PqkeepError("malformed-response", message, { status: response.status, requestId });
}

function tooLate(exchange: Exchange): PqkeepError {
  const { requestId } = exchange;
  return new PqkeepError("deadline-exceeded", "the service did not respond in time", { requestId });
}

/** Returns the error for a missing or incomplete response. Its text is never the request's. */
function connectionFailed(error: unknown, exchange: Exchange): PqkeepError {
  const cause = error instanceof Error ? asObject(error.cause) : undefined;
  const code = cause?.["code"];
  const known = typeof code === "string" && /^[A-Z0-9_]{1,64}$/.test(code) ? ` (${code})` : "";
  const message = `the service cannot be reached, or the connection broke${known}`;
  return new PqkeepError("connection-failed", message, { requestId: exchange.requestId });
}

function paused(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", abort, { once: true });
  });
}
