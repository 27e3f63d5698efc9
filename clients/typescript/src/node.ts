/** For Node and Deno: the settings of the environment, and files. */
import { randomBytes } from "node:crypto";
import { closeSync, createReadStream, fstatSync, openSync, readSync } from "node:fs";
import { link, open, rename, unlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import { Client } from "./client.js";
import { PqkeepError } from "./errors.js";
import type { Local, LocalChange, LocalOptions } from "./local/index.js";
import type { ClientOptions, Workload } from "./settings.js";

const LONGEST_FILE = 65_536;
const BLANK = /^[\s\uFEFF]+|[\s\uFEFF]+$/g;
const UNSUPPORTED = new Map([
  ["PQKEEP_PROFILE", "this client reads no profiles: unset it, and set PQKEEP_URL and a credential"],
  ["PQKEEP_CA_FILE", "this client does not read it: unset it, and name the file in NODE_EXTRA_CA_CERTS or DENO_CERT"],
]);

/**
 * Returns a client with the address and the credential of the environment.
 *
 * PQKEEP_URL is the address. The credential is PQKEEP_API_KEY, a file in PQKEEP_API_KEY_FILE, or the
 * platform's token in PQKEEP_TOKEN_FILE for the role in PQKEEP_ROLE. Options have precedence. Throws
 * PqkeepError of the kind `configuration`.
 */
export function fromEnvironment(options: Partial<ClientOptions> = {}): Client {
  for (const [name, message] of UNSUPPORTED) {
    if (variable(name) !== undefined) throw refused(`${name} is set, but ${message}`);
  }
  const url = options.url ?? variable("PQKEEP_URL");
  if (url === undefined) throw refused("the address is missing: set PQKEEP_URL");
  const hasCredential = options.apiKey !== undefined || options.workload !== undefined;
  return new Client({ ...(hasCredential ? {} : credential()), ...options, url });
}

/** Returns a function that reads the platform's token, which its platform replaces. */
export function tokenFile(path: string): () => string {
  return () => {
    try {
      return readSmall(path, false);
    } catch (error) {
      if (error instanceof PqkeepError) throw error;
      throw refused(`the token's file ${path} cannot be read${reason(error)}`);
    }
  };
}

/**
 * Encrypts a file. The new file (mode 0600) gets its name when it is complete and on disk.
 *
 * Throws PqkeepError, RangeError, and errors of the file system: EEXIST unless `replace`.
 */
export async function encryptFile(
  local: Local,
  source: string,
  target: string,
  options: LocalOptions & { readonly replace?: boolean } = {},
): Promise<void> {
  await save(target, local.encryptStream(createReadStream(source), options), options.replace ?? false);
}

/** Decrypts a file. As `encryptFile`. */
export async function decryptFile(
  local: Local,
  source: string,
  target: string,
  options: { readonly replace?: boolean } = {},
): Promise<void> {
  await save(target, local.decryptStream(createReadStream(source)), options.replace ?? false);
}

/** Changes the recipients of a file. A copy replaces it when the copy is complete. As `encryptFile`. */
export async function reEncryptFile(local: Local, path: string, change: LocalChange = {}): Promise<void> {
  await save(path, local.reEncryptStream(createReadStream(path), change), true);
}

async function save(target: string, pieces: ReadableStream<Uint8Array>, replace: boolean): Promise<void> {
  const temporary = join(dirname(target), `.pqkeep-${randomBytes(8).toString("hex")}`);
  const reader = pieces.getReader();
  try {
    const file = await open(temporary, "wx", 0o600);
    try {
      for (let read = await reader.read(); !read.done; read = await reader.read()) {
        await file.appendFile(read.value);
      }
      await file.sync();
    } finally {
      await file.close();
    }
    if (replace) await rename(temporary, target);
    else await link(temporary, target); // fails if there is one
  } finally {
    await reader.cancel().catch(() => undefined);
    await unlink(temporary).catch(() => undefined);
  }
  await synchronized(dirname(target));
}

/** Waits until the names in a directory are on disk. Some systems cannot open a directory. */
async function synchronized(directory: string): Promise<void> {
  const opened = await open(directory, "r").catch(() => undefined);
  await opened?.sync().catch(() => undefined);
  await opened?.close();
}

function credential(): Pick<ClientOptions, "apiKey"> | { workload: Workload } {
  const key = variable("PQKEEP_API_KEY");
  const keyFile = variable("PQKEEP_API_KEY_FILE");
  const token = variable("PQKEEP_TOKEN_FILE");
  const role = variable("PQKEEP_ROLE");
  if ((token === undefined) !== (role === undefined)) {
    throw refused("PQKEEP_TOKEN_FILE and PQKEEP_ROLE belong together: set both, or neither");
  }
  if ([key, keyFile, token].filter((each) => each !== undefined).length > 1) {
    throw refused("only one of PQKEEP_API_KEY, PQKEEP_API_KEY_FILE and PQKEEP_TOKEN_FILE can be set: unset the others");
  }
  if (key !== undefined) return { apiKey: key };
  if (keyFile !== undefined) return { apiKey: privateFile(keyFile) };
  if (token !== undefined && role !== undefined) return { workload: { role, token: tokenFile(token) } };
  throw refused(
    "the API key is missing: set PQKEEP_API_KEY, PQKEEP_API_KEY_FILE, or PQKEEP_TOKEN_FILE and PQKEEP_ROLE",
  );
}

function privateFile(path: string): string {
  try {
    return readSmall(path, true);
  } catch (error) {
    if (error instanceof PqkeepError) throw error;
    throw refused(`the API key's file cannot be read${reason(error)}`);
  }
}

/** Returns the text of a file, without blank lines and a byte-order mark. */
function readSmall(path: string, isPrivate: boolean): string {
  const descriptor = openSync(path, "r");
  try {
    if (isPrivate) requirePrivate(path, descriptor);
    const bytes = Buffer.alloc(LONGEST_FILE);
    return bytes.toString("utf8", 0, readSync(descriptor, bytes, 0, LONGEST_FILE, null)).replace(BLANK, "");
  } finally {
    closeSync(descriptor);
  }
}

/** Refuses a file that other users can read or write. Root's may be readable for the process's own group. */
function requirePrivate(path: string, descriptor: number): void {
  const user = process.geteuid?.();
  if (user === undefined) return; // Windows
  const { mode, uid, gid } = fstatSync(descriptor);
  if ((mode & 0o170000) !== 0o100000) return; // a pipe: only this process reads from it
  const others = mode & 0o077;
  const groups = [process.getegid?.(), ...(process.getgroups?.() ?? [])];
  const isOfGroup = uid === 0 && others === 0o040 && groups.includes(gid);
  if ((others !== 0 && !isOfGroup) || (uid !== user && uid !== 0)) {
    throw refused(`${path} must belong to you and have mode 0600: run chmod 0600 on it`);
  }
}

function variable(name: string): string | undefined {
  const value = process.env[name]?.replace(BLANK, "");
  return value === "" ? undefined : value;
}

function reason(error: unknown): string {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return typeof code === "string" ? `: ${code}` : "";
}

function refused(message: string): PqkeepError {
  return new PqkeepError("configuration", message);
}
