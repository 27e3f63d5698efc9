// Runs the cases of the behaviour suite: see tests/clients/driver.py. Node, Deno and browsers share it.
import { toBase64, fromBase64 } from "../../src/encoding.js";
import { Client, PqkeepError, type ClientOptions, type ErrorKind } from "../../src/index.js";
import { decrypt, Local } from "../../src/local/index.js";

export type Values = { [name: string]: unknown };

export interface Case {
  readonly name: string;
  readonly needs?: string;
  readonly client: {
    readonly base_url: string;
    readonly api_key?: string;
    readonly token_file?: string;
    readonly role?: string;
    readonly timeout?: number;
    readonly retries?: number;
  };
  readonly calls: readonly { readonly call: string; readonly arguments: Values }[];
}

/** What only a system with files can do. */
export interface Files {
  readonly token: (path: string) => () => string;
  readonly call: (local: Local, method: string, content: Uint8Array) => Promise<Values>;
  /** Files that a failed call left. */
  readonly left: () => readonly string[];
}

const THREADS = 16;
const BYTES = new Set([
  ...["plaintext", "ciphertext", "kem_ciphertext", "wrapped_key", "symmetric_key", "salt"],
  ...["associated_data", "context", "message", "signature", "digest", "mac", "content", "public_key"],
]);
const KINDS: Readonly<Record<ErrorKind, string>> = {
  configuration: "ConfigurationError",
  "invalid-request": "InvalidRequestError",
  authentication: "AuthenticationError",
  "permission-denied": "PermissionDeniedError",
  "not-found": "NotFoundError",
  conflict: "ConflictError",
  "rate-limit": "RateLimitError",
  internal: "InternalError",
  "bad-gateway": "BadGatewayError",
  "out-of-service": "OutOfServiceError",
  "gateway-timeout": "GatewayTimeoutError",
  "connection-failed": "ConnectionFailedError",
  "deadline-exceeded": "DeadlineExceededError",
  "malformed-response": "MalformedResponseError",
  decryption: "DecryptionError",
  "unreadable-input": "UnreadableInputError",
  other: "PqkeepError",
};
/** Python's classes for codes: in TypeScript the code itself tells these errors apart. */
const CODES: ReadonlyMap<string, string> = new Map([
  ["ERR_INVALID_002", "InvalidSaltError"],
  ["ERR_KEM_001", "EncryptionInputError"],
  ["ERR_KEM_002", "DecryptionError"],
  ["ERR_KEM_006", "DecryptionError"],
  ["ERR_KEM_007", "InvalidModeError"],
  ["ERR_KEM_010", "WrappingInputError"],
  ["ERR_KEM_011", "UnwrappingInputError"],
  ["ERR_KEM_012", "UnwrappingError"],
  ["ERR_SIG_001", "SignatureInputError"],
  ["ERR_SIG_002", "MessageTooLargeError"],
  ["ERR_SIG_010", "HashAlgorithmError"],
  ["ERR_SIG_011", "HashLengthError"],
  ["ERR_POLICY_001", "PolicyDeniedError"],
]);

/** Runs cases at the same time, and passes each one's line. */
export async function run(cases: readonly Case[], print: (line: string) => void, files?: Files): Promise<void> {
  const waiting = [...cases];
  const work = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const isSkipped = next.needs !== undefined && files === undefined;
      const outcome = isSkipped ? { skipped: next.needs } : { results: await resultsOf(next, files) };
      print(JSON.stringify({ name: next.name, ...outcome }));
    }
  };
  await Promise.all(Array.from({ length: THREADS }, work));
}

async function resultsOf(asked: Case, files: Files | undefined): Promise<Values[]> {
  let made: Client | unknown;
  try {
    made = clientOf(asked.client, files);
  } catch (error) {
    made = error;
  }
  const values: Values[] = [];
  const results: Values[] = [];
  for (const call of asked.calls) {
    const began = performance.now();
    let result: Values;
    try {
      if (!(made instanceof Client)) throw made;
      const given = givenTo(call.arguments, values);
      const value = given === undefined ? {} : await resultOf(made, call.call, given, files);
      values.push(value);
      result = given === undefined ? { skipped: "result" } : { value };
    } catch (error) {
      values.push({});
      result = { error: shownError(error), left: files?.left() ?? [] };
    }
    results.push({ ...(shown(result) as Values), seconds: (performance.now() - began) / 1000 });
  }
  return results;
}

function clientOf(options: Case["client"], files: Files | undefined): Client {
  const { base_url: url, api_key: apiKey, token_file: tokenFile, role, timeout, retries } = options;
  const credential =
    tokenFile === undefined
      ? { apiKey: apiKey ?? "" }
      : { workload: { role: role ?? "", token: files?.token(tokenFile) ?? "" } };
  const given: ClientOptions = {
    url,
    ...credential,
    ...(timeout === undefined ? {} : { timeout: timeout * 1000 }),
    ...(retries === undefined ? {} : { retries }),
  };
  return new Client(given);
}

/** Returns a call's arguments, or undefined if one is the field of a result that is missing. */
function givenTo(values: Values, results: readonly Values[]): Values | undefined {
  const given: Values = {};
  for (const [name, value] of Object.entries(values)) {
    const place = value as { result?: number; field?: string };
    if (typeof place === "object" && place.result !== undefined && place.field !== undefined) {
      given[name] = results[place.result]?.[place.field];
      if (given[name] === undefined) return undefined;
    } else {
      given[name] = BYTES.has(name) && typeof value === "string" ? fromBase64(value) : value;
    }
  }
  return given;
}

type Calls = Record<string, Record<string, (fields: Values) => Promise<unknown>>>;

async function resultOf(client: Client, call: string, given: Values, files: Files | undefined): Promise<Values> {
  const [resource, method] = call.split(".") as [string, string];
  if (resource === "local") return resultOfLocal(client, method, given, files);
  if (call === "kem.encrypt_to_envelope") return (await client.call("encrypt", { ...given, format: "envelope" } as never)) as Values;
  if (call === "kem.decrypt_envelope") return (await client.call("decrypt", given as never)) as Values;
  if (method.endsWith("_many")) return resultOfMany(client, method, given);
  if (call === "audit.export") return { records: await client.audit.export(new WritableStream()) };
  if (call === "audit.records") {
    const items: unknown[] = [];
    for await (const record of client.audit.records(given)) items.push(record);
    return { items };
  }
  const camel = (text: string): string => text.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
  const named = (client as unknown as Calls)[camel(resource)]?.[camel(method)];
  if (named === undefined) throw new Error(`no method ${call}`);
  const result = await named(given);
  if (typeof result === "boolean") return { valid: result };
  return Array.isArray(result) ? { items: result } : (result as Values);
}

async function resultOfMany(client: Client, method: string, given: Values): Promise<Values> {
  const items = (given["items"] as Values[]).map((item) => givenTo(item, []) as never);
  const { results } = await (method === "encrypt_many" ? client.kem.encryptMany({ items }) : client.kem.decryptMany({ items }));
  return { items: results.map(({ data, error }) => (error ? { error: { code: error.error_code } } : data)) };
}

async function resultOfLocal(client: Client, method: string, given: Values, files: Files | undefined): Promise<Values> {
  const local = new Local(client);
  const data = given as Record<string, Uint8Array>;
  switch (method) {
    case "decrypt_with": {
      const secrets = given["secrets"] as Record<string, string>;
      const plaintext = await decrypt(data["ciphertext"] as Uint8Array, ({ algorithm }) => fromBase64(secrets[algorithm] ?? ""));
      return { plaintext };
    }
    case "encrypt": {
      const { plaintext, recipients = [], ...options } = given;
      const others = [];
      for (const algorithm of recipients as string[]) others.push(await local.active(algorithm));
      return { ciphertext: await local.encrypt(plaintext as Uint8Array, { ...options, recipients: others }) };
    }
    case "decrypt":
      return { plaintext: await local.decrypt(data["ciphertext"] as Uint8Array) };
    default:
      if (files === undefined) throw new Error("no files here");
      return files.call(local, method, data["content"] as Uint8Array);
  }
}

function shownError(error: unknown): Values {
  if (!(error instanceof PqkeepError)) return { kind: `not of pqkeep: ${String(error)}`, message: String(error) };
  return {
    kind: CODES.get(error.code ?? "") ?? KINDS[error.kind],
    code: error.code ?? null,
    status: error.status ?? null,
    field: error.field ?? null,
    request_id: error.requestId ?? null,
    retry_after: error.retryAfter ?? null,
    message: error.message,
  };
}

function shown(value: unknown): unknown {
  if (value instanceof Uint8Array) return toBase64(value);
  if (Array.isArray(value)) return value.map(shown);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, shown(member)]));
}
