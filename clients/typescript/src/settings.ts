/** The options of a client, and their checks. */
import { PqkeepError } from "./errors.js";
import type { RuleWarning } from "./warnings.js";

/** A workload: its platform's token is exchanged for a short-lived API key, which is renewed. */
export interface Workload {
  /** The tenant's id, a slash, and the role's name. */
  readonly role: string;
  /** The platform's token, or a function that returns the present one. */
  readonly token: string | (() => string | Promise<string>);
}

/** What a client sends requests with: `fetch` or a function like it. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export interface ClientOptions {
  /** The address: `https://`, a host and an optional path. `/api/v1` at its end is no part of it. */
  readonly url: string;
  /** A tenant's API key, or the operator's credential. */
  readonly apiKey?: string;
  /** In place of an API key. */
  readonly workload?: Workload;
  /** Milliseconds for a call, with all its attempts: 30,000. */
  readonly timeout?: number;
  /** The number of attempts after the first: 6. */
  readonly retries?: number;
  /** Allow `http://` to other machines: for connections that are encrypted by other means. */
  readonly allowPlainHttp?: boolean;
  /** The function that sends requests, for example through a proxy. The default is `fetch`. */
  readonly fetch?: Fetch;
  /** Called once for each rule that will end an operation of this program. The default logs it. */
  readonly onRuleWarning?: (warning: RuleWarning) => void;
}

export interface Settings {
  /** Without a slash at its end. */
  readonly url: string;
  readonly apiKey: string | undefined;
  readonly workload: Workload | undefined;
  readonly timeout: number;
  readonly retries: number;
  readonly fetch: Fetch;
  readonly onRuleWarning: (warning: RuleWarning) => void;
}

const API = /\/api\/v1$/;
const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/;
const LONGEST_TIMEOUT = 2 ** 31 - 1;

function refused(message: string): PqkeepError {
  return new PqkeepError("configuration", message);
}

/** Returns the checked settings. Throws PqkeepError of the kind `configuration`. */
export function settingsOf(options: ClientOptions): Settings {
  const { apiKey, workload, timeout = 30_000, retries = 6 } = options;
  if ((apiKey === undefined) === (workload === undefined)) {
    throw refused("a client needs one credential: pass apiKey, or workload");
  }
  if (!(timeout > 0 && timeout <= LONGEST_TIMEOUT)) {
    throw refused(`timeout must be 1 to ${LONGEST_TIMEOUT} milliseconds`);
  }
  if (!(Number.isSafeInteger(retries) && retries >= 0)) {
    throw refused("retries must be an integer of at least 0");
  }
  return {
    url: checkedAddress(options.url, options.allowPlainHttp ?? false),
    apiKey: apiKey === undefined ? undefined : checkedKey(apiKey),
    workload,
    timeout,
    retries,
    fetch: options.fetch ?? ((url, init) => fetch(url, init)),
    onRuleWarning: options.onRuleWarning ?? ((warning) => console.warn(`pqkeep: ${warning.message}`)),
  };
}

function checkedAddress(given: string, allowPlainHttp: boolean): string {
  const form = "url must be https:// or http://, a host and an optional path";
  const text = given.trim();
  if (/[\s\p{Cc}"'`]/u.test(text)) throw refused(`${form}: it has a space, a quotation mark or a control character`);
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw refused(form);
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") throw refused(form);
  if (url.username !== "" || url.password !== "") {
    throw refused(`${form}: it has a user name, which pqkeep does not use`);
  }
  if (/[?#]/.test(text)) throw refused(`${form}: it has a query or a fragment`);
  if (url.protocol === "http:" && !allowPlainHttp && !LOOPBACK.test(url.hostname)) {
    throw refused("http:// is for this machine only: use https://, or others can read what is sent");
  }
  const path = url.pathname.replace(/\/+$/, "").replace(API, "").replace(/\/+$/, "");
  return url.origin + path;
}

/** Returns a checked API key. Throws PqkeepError, which never shows the key. */
export function checkedKey(given: string): string {
  const key = given.trim();
  if (!/^[!-~]+$/.test(key)) {
    throw refused("the API key must be printable ASCII without spaces, and not empty");
  }
  return key;
}
