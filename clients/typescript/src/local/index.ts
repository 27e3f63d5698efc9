/**
 * Local encryption: data of any size is encrypted here, and the service never sees it.
 *
 * docs/local-format.md describes the format, and docs/local-encryption.md the protection.
 */
import type { Client } from "../client.js";
import { ascii, concatenated, type Bytes } from "../encoding.js";
import { PqkeepError } from "../errors.js";
import type { CallOptions } from "../transport.js";
import {
  changedRecipients,
  DEFAULT_CAPACITY,
  hasCapacityFor,
  headerOf,
  layoutFor,
  openHeader,
  readHeaderOf,
  type Decapsulate,
  type Header,
  type Opened,
} from "./header.js";
import { aead, canonical, derived, encapsulate, kemOf, NONCE_SIZE, random, sealed } from "./primitives.js";
import { asStream, joined, Reader, type Source } from "./reading.js";
import { DEFAULT_KEYRING, FileKey, fingerprintOf, identity, type Recipient } from "./recipients.js";
import { decryptedSegments, encryptedSegments } from "./segments.js";

export type { Decapsulate, Header } from "./header.js";
export type { Source } from "./reading.js";
export { fingerprintOf, type Recipient, type WrappedFileKey } from "./recipients.js";

const COPIED = 1024 * 1024;
/** The most bytes that the service decrypts in one request. */
const LARGEST_PLAINTEXT = 1024 * 1024;

export interface EncryptOptions {
  readonly recipients: readonly Recipient[];
  /** The number of recipients for which the header has capacity. Recipients can be added later. */
  readonly capacity?: number;
}

/** A change of recipients. */
export interface Change {
  /** Replaces the recipient that opened the data. */
  readonly to?: Recipient;
  readonly add?: readonly Recipient[];
  /** Fingerprints of recipients. */
  readonly remove?: readonly Uint8Array[];
  /** Encrypt the data again: `to` and `add` must then have the keys of all recipients. */
  readonly newFileKey?: boolean;
}

/** Encrypts data in memory. Throws RangeError for no or too many recipients, or an invalid one. */
export function encrypt(plaintext: Uint8Array, options: EncryptOptions): Promise<Uint8Array> {
  return joined(encrypted([plaintext], { capacity: 0, ...options }));
}

/** Encrypts a stream. */
export function encryptStream(source: Source, options: EncryptOptions): ReadableStream<Uint8Array> {
  return asStream(encrypted(source, options));
}

/** Decrypts data in memory. Throws PqkeepError, and the errors of `decapsulate`. */
export function decrypt(ciphertext: Uint8Array, decapsulate: Decapsulate): Promise<Uint8Array> {
  return joined(decrypted([ciphertext], decapsulate));
}

/** Decrypts a stream. Each byte is authenticated. The data is complete only when the stream has ended. */
export function decryptStream(source: Source, decapsulate: Decapsulate): ReadableStream<Uint8Array> {
  return asStream(decrypted(source, decapsulate));
}

/** Returns the data with other recipients. Throws PqkeepError and RangeError. */
export function reEncrypt(ciphertext: Uint8Array, change: Change, decapsulate: Decapsulate): Promise<Uint8Array> {
  return joined(reEncrypted([ciphertext], () => change, decapsulate));
}

/** Copies encrypted data with other recipients. Without a new file key, segments are not authenticated. */
export function reEncryptStream(source: Source, change: Change, decapsulate: Decapsulate): ReadableStream<Uint8Array> {
  return asStream(reEncrypted(source, () => change, decapsulate));
}

/** Returns the header of encrypted data, which lists the keys that open it. Throws PqkeepError. */
export async function readHeader(source: Source | Uint8Array): Promise<Header> {
  const reader = new Reader(source instanceof Uint8Array ? [source] : source);
  try {
    return await readHeaderOf(reader);
  } finally {
    await reader.end();
  }
}

/**
 * Encrypts at most 1 MiB in the service's own format, for `client.kem.decrypt`.
 *
 * Decryption needs the same tenant, keyring, algorithm, key version and associated data.
 */
export async function encryptForService(
  plaintext: Uint8Array,
  options: { readonly tenantId: string; readonly recipient: Recipient; readonly associatedData?: Uint8Array },
): Promise<{ ciphertext: Uint8Array; algorithm: string; key_version: number }> {
  const { keyring = DEFAULT_KEYRING, keyVersion, publicKey } = options.recipient;
  const algorithm = canonical(options.recipient.algorithm);
  if (plaintext.length > LARGEST_PLAINTEXT) {
    throw new RangeError(`the service decrypts at most ${LARGEST_PLAINTEXT} bytes`);
  }
  const tenant = options.tenantId.replaceAll("-", "");
  if (!/^[0-9a-fA-F]{32}$/.test(tenant)) throw new RangeError("tenantId must be a UUID");
  const tenantBytes = Uint8Array.from(tenant.match(/../g) as string[], (pair) => parseInt(pair, 16));
  const version = new Uint8Array(4);
  new DataView(version.buffer).setUint32(0, keyVersion);
  const { kemCiphertext, sharedSecret } = encapsulate(algorithm, publicKey);
  const purpose = ["pqkeep/v1", "encrypt", algorithm, tenantBytes, version];
  if (keyring !== DEFAULT_KEYRING) purpose.push(ascii(keyring));
  const key = await aead(derived(kemOf(algorithm).hash, sharedSecret, purpose));
  const nonce = random(NONCE_SIZE);
  const bound = Uint8Array.from(options.associatedData ?? []);
  const data = await sealed(key, nonce, Uint8Array.from(plaintext), bound);
  return { ciphertext: concatenated(kemCiphertext, nonce, data), algorithm, key_version: keyVersion };
}

/** What the service's active key is chosen by, and who else may decrypt. */
export interface LocalOptions {
  /** `Kyber768` (the default), `X-Wing` or `ML-KEM-1024`. */
  readonly algorithm?: string;
  /** The default is `default`. */
  readonly keyring?: string;
  readonly recipients?: readonly Recipient[];
  readonly capacity?: number;
}

export interface LocalChange extends Change {
  readonly algorithm?: string;
  readonly keyring?: string;
}

/** Local encryption with a client. Encryption asks for the active public key, decryption for a shared secret. */
export class Local {
  readonly #client: Client;
  readonly #options: CallOptions;

  /** Takes the client, and the options of its calls. */
  constructor(client: Client, options: CallOptions = {}) {
    this.#client = client;
    this.#options = options;
  }

  async encrypt(plaintext: Uint8Array, options: LocalOptions = {}): Promise<Uint8Array> {
    return joined(this.#encrypted([plaintext], { capacity: 0, ...options }));
  }

  encryptStream(source: Source, options: LocalOptions = {}): ReadableStream<Uint8Array> {
    return asStream(this.#encrypted(source, options));
  }

  async decrypt(ciphertext: Uint8Array): Promise<Uint8Array> {
    return decrypt(ciphertext, this.decapsulate);
  }

  /** The data is complete only when the stream has ended: do not use it before. */
  decryptStream(source: Source): ReadableStream<Uint8Array> {
    return decryptStream(source, this.decapsulate);
  }

  /** Moves data to the active key of the same or the named algorithm and keyring, or to `to`. */
  async reEncrypt(ciphertext: Uint8Array, change: LocalChange = {}): Promise<Uint8Array> {
    return joined(this.#reEncrypted([ciphertext], change));
  }

  reEncryptStream(source: Source, change: LocalChange = {}): ReadableStream<Uint8Array> {
    return asStream(this.#reEncrypted(source, change));
  }

  async encryptForService(
    plaintext: Uint8Array,
    options: { readonly tenantId: string; readonly algorithm?: string; readonly keyring?: string; readonly associatedData?: Uint8Array },
  ): Promise<{ ciphertext: Uint8Array; algorithm: string; key_version: number }> {
    const recipient = await this.active(options.algorithm ?? "Kyber768", options.keyring);
    return encryptForService(plaintext, { ...options, recipient });
  }

  /** Returns the active key as a recipient. */
  async active(algorithm: string, keyring?: string): Promise<Recipient> {
    kemOf(algorithm);
    const named = keyring === undefined || keyring === DEFAULT_KEYRING ? {} : { keyring };
    const fields = { algorithm: canonical(algorithm), ...named } as Parameters<Client["keys"]["active"]>[0];
    const key = await this.#client.keys.active(fields, this.#options);
    const publicKey = key.public_key ?? new Uint8Array(0);
    const recipient = { publicKey, algorithm: canonical(algorithm), keyVersion: key.key_version, ...named };
    try {
      encapsulate(algorithm, publicKey);
    } catch {
      const message = "the key in the response is not valid for the algorithm";
      throw new PqkeepError("malformed-response", message, { field: "public_key" });
    }
    return recipient;
  }

  /** Recovers a shared secret, as the functions of this module ask for it. */
  readonly decapsulate: Decapsulate = async ({ kemCiphertext, keyVersion, algorithm, keyring }) => {
    const named = keyring === DEFAULT_KEYRING ? {} : { keyring };
    const fields = { kem_ciphertext: kemCiphertext, key_version: keyVersion, algorithm, ...named };
    const data = await this.#client.kem.decapsulate(
      fields as Parameters<Client["kem"]["decapsulate"]>[0],
      this.#options,
    );
    return data.shared_secret;
  };

  async *#encrypted(source: Source, options: LocalOptions): AsyncGenerator<Uint8Array, void> {
    const active = await this.active(options.algorithm ?? "Kyber768", options.keyring);
    const recipients = [active, ...(options.recipients ?? [])];
    yield* encrypted(source, { recipients, capacity: options.capacity ?? DEFAULT_CAPACITY });
  }

  #reEncrypted(source: Source, change: LocalChange): AsyncGenerator<Uint8Array, void> {
    return reEncrypted(source, (opened) => this.#change(opened, change), this.decapsulate);
  }

  async #change(opened: Opened, change: LocalChange): Promise<Change> {
    const { algorithm, keyring } = change;
    const isNamed = algorithm !== undefined || keyring !== undefined;
    if (change.to !== undefined) {
      if (isNamed) throw new RangeError("name either an algorithm or a public key, not both");
      return change;
    }
    const hasOther = change.add !== undefined || change.remove !== undefined;
    if (!isNamed && change.newFileKey !== true && hasOther) return change;
    const to = await this.active(algorithm ?? opened.recipient.algorithm, keyring ?? opened.recipient.keyring);
    return { ...change, to };
  }
}

async function* encrypted(source: Source, options: EncryptOptions): AsyncGenerator<Bytes, void> {
  const fileKey = FileKey.new();
  const wrapped = await changedRecipients([], fileKey, options.recipients);
  const layout = layoutFor(wrapped, options.capacity ?? DEFAULT_CAPACITY);
  const reader = new Reader(source);
  try {
    yield headerOf(fileKey, wrapped, layout, 1n);
    yield* encryptedSegments(reader, fileKey.dataKey());
  } finally {
    await reader.end();
  }
}

async function* decrypted(source: Source, decapsulate: Decapsulate): AsyncGenerator<Bytes, void> {
  const reader = new Reader(source);
  try {
    const { fileKey } = await openHeader(await readHeaderOf(reader), decapsulate);
    yield* decryptedSegments(reader, fileKey.dataKey());
  } finally {
    await reader.end();
  }
}

async function* reEncrypted(
  source: Source,
  changeFor: (opened: Opened) => Change | Promise<Change>,
  decapsulate: Decapsulate,
): AsyncGenerator<Bytes, void> {
  const reader = new Reader(source);
  try {
    const header = await readHeaderOf(reader);
    const opened = await openHeader(header, decapsulate);
    const change = await changeFor(opened);
    const fileKey = change.newFileKey === true ? FileKey.new() : opened.fileKey;
    const isNew = fileKey !== opened.fileKey;
    const recipients = isNew
      ? await recipientsOfNewKey(header, opened, change, fileKey)
      : await recipientsOfSameKey(header, opened, change);
    const layout = hasCapacityFor(header.layout, recipients)
      ? header.layout
      : layoutFor(recipients, header.layout.slots > 1 ? recipients.length : 0);
    yield headerOf(fileKey, recipients, layout, isNew ? 1n : header.sequence + 1n);
    if (isNew) {
      const plaintexts = decryptedSegments(reader, opened.fileKey.dataKey());
      yield* encryptedSegments(new Reader(plaintexts), fileKey.dataKey());
    } else {
      for await (const { piece } of reader.pieces(COPIED)) if (piece.length > 0) yield piece;
    }
  } finally {
    await reader.end();
  }
}

function recipientsOfSameKey(header: Header, opened: Opened, change: Change): ReturnType<typeof changedRecipients> {
  const add = [...(change.add ?? [])];
  const remove = [...(change.remove ?? [])];
  if (change.to !== undefined) {
    add.push(change.to);
    const { algorithm, fingerprint } = opened.recipient;
    if (identity(change.to.algorithm, fingerprintOf(change.to)) !== identity(algorithm, fingerprint)) {
      remove.push(fingerprint);
    }
  }
  return changedRecipients(header.recipients, opened.fileKey, add, remove);
}

async function recipientsOfNewKey(
  header: Header,
  opened: Opened,
  change: Change,
  fileKey: FileKey,
): ReturnType<typeof changedRecipients> {
  const known = [...(change.to === undefined ? [] : [change.to]), ...(change.add ?? [])];
  const replaced = change.to === undefined ? [] : [opened.recipient.fingerprint];
  const identities = new Set(known.map((each) => identity(each.algorithm, fingerprintOf(each))));
  const ends = [...(change.remove ?? []), ...replaced];
  const left = await changedRecipients(header.recipients, opened.fileKey, known, ends);
  if (left.some((each) => !identities.has(identity(each.algorithm, each.fingerprint)))) {
    throw new RangeError("a new file key needs the public key of each recipient: add it, or remove the recipient");
  }
  return changedRecipients([], fileKey, known);
}
