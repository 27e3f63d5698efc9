/** Recipients: the public keys that wrap a file key, and their entries in a header. */
import { ascii, concatenated, equalSecret, hexadecimal, type Bytes } from "../encoding.js";
import { PqkeepError } from "../errors.js";
import {
  aead,
  canonical,
  derived,
  encapsulate,
  KEMS,
  kemOf,
  KEY_SIZE,
  LARGEST_KEY_VERSION,
  NONCE_SIZE,
  opened,
  random,
  sealed,
  sha256,
  sha384,
  TAG_SIZE,
} from "./primitives.js";

const PROTOCOL = "pqkeep/local/v2";
const KEYRING = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/;
const FINGERPRINT_SIZE = 32;
const WRAPPED_SIZE = KEY_SIZE + TAG_SIZE;
export const MAC_SIZE = 48;
/** The keyring that every tenant has. */
export const DEFAULT_KEYRING = "default";
/** Bytes of a recipient with ML-KEM-1024 and the longest keyring name. */
export const LARGEST_RECIPIENT = 1 + 4 + 1 + 128 + FINGERPRINT_SIZE + 1568 + WRAPPED_SIZE;

/** A public key to encrypt to, with the names by which its owner finds the private key. */
export interface Recipient {
  readonly publicKey: Uint8Array;
  readonly algorithm: string;
  readonly keyVersion: number;
  /** The default is `default`. */
  readonly keyring?: string;
}

/** A recipient in a header. Nothing of it is authenticated until the file key is known. */
export interface WrappedFileKey {
  readonly algorithm: string;
  readonly keyVersion: number;
  readonly keyring: string;
  /** SHA-256 of the public key. */
  readonly fingerprint: Bytes;
  readonly kemCiphertext: Bytes;
  readonly wrapped: Bytes;
}

/** The secret key of one file. */
export class FileKey {
  readonly #value: Bytes;

  constructor(value: Bytes) {
    this.#value = value;
  }

  static new(): FileKey {
    return new FileKey(random(KEY_SIZE));
  }

  /** The key of the segments. */
  dataKey(): Bytes {
    return derived(sha384, this.#value, [PROTOCOL, "data key"]);
  }

  /** Authenticates everything in a slot before the MAC. */
  mac(slot: Uint8Array): Bytes {
    return derived(sha384, this.#value, [PROTOCOL, "header", sha384(slot)], MAC_SIZE);
  }

  hasAuthenticated(slot: Uint8Array, mac: Uint8Array): boolean {
    return equalSecret(this.mac(slot), mac);
  }

  async wrappedWith(unfinished: WrappedFileKey, sharedSecret: Uint8Array): Promise<WrappedFileKey> {
    const key = await wrappingKey(unfinished, sharedSecret);
    return { ...unfinished, wrapped: await sealed(key, new Uint8Array(NONCE_SIZE), this.#value) };
  }
}

/** SHA-256 of a recipient's public key. */
export function fingerprintOf(recipient: Recipient): Bytes {
  return Uint8Array.from(sha256(recipient.publicKey));
}

/** Returns a text that identifies a recipient. */
export function identity(algorithm: string, fingerprint: Uint8Array): string {
  return `${canonical(algorithm)} ${hexadecimal(fingerprint)}`;
}

/** Wraps a file key. Throws RangeError for an invalid recipient. */
export async function wrap(fileKey: FileKey, recipient: Recipient): Promise<WrappedFileKey> {
  const { keyVersion, keyring = DEFAULT_KEYRING } = recipient;
  if (!(Number.isInteger(keyVersion) && keyVersion >= 1 && keyVersion <= LARGEST_KEY_VERSION)) {
    throw new RangeError(`keyVersion must be from 1 to ${LARGEST_KEY_VERSION}`);
  }
  if (!KEYRING.test(keyring)) {
    throw new RangeError("keyring must be 1 to 128 of A-Z, a-z, 0-9, _, . and -");
  }
  const { kemCiphertext, sharedSecret } = encapsulate(recipient.algorithm, recipient.publicKey);
  const unfinished = {
    algorithm: canonical(recipient.algorithm),
    keyVersion,
    keyring,
    fingerprint: fingerprintOf(recipient),
    kemCiphertext,
    wrapped: new Uint8Array(0),
  };
  return fileKey.wrappedWith(unfinished, sharedSecret);
}

/** Returns the file key. Throws PqkeepError of the kind `decryption` for another key's secret. */
export async function unwrap(recipient: WrappedFileKey, sharedSecret: Uint8Array): Promise<FileKey> {
  const key = await wrappingKey(recipient, sharedSecret);
  const value = await opened(key, new Uint8Array(NONCE_SIZE), recipient.wrapped);
  if (value === undefined) {
    throw new PqkeepError(
      "decryption",
      "the data was encrypted to another key than the one in use, or its header is damaged",
    );
  }
  return new FileKey(value);
}

export function encodedRecipient(recipient: WrappedFileKey): Bytes {
  return concatenated(bound(recipient), recipient.wrapped);
}

/** Returns the recipient at a place, and the place after it. Throws PqkeepError. */
export function recipientAt(data: Bytes, start: number): { recipient: WrappedFileKey; end: number } {
  const [algorithm, kem] = [...KEMS].find(([, each]) => each.number === data[start]) ?? [];
  if (algorithm === undefined || kem === undefined) {
    throw damaged("the algorithm of a recipient is unknown");
  }
  const nameAt = start + 6;
  const nameEnd = nameAt + (data[start + 5] ?? 0);
  const fingerprintEnd = nameEnd + FINGERPRINT_SIZE;
  const ciphertextEnd = fingerprintEnd + kem.ciphertextSize;
  const end = ciphertextEnd + WRAPPED_SIZE;
  if (end > data.length) throw damaged("a recipient is invalid");
  const keyVersion = new DataView(data.buffer, data.byteOffset).getUint32(start + 1);
  const keyring = String.fromCharCode(...data.subarray(nameAt, nameEnd));
  if (keyVersion === 0 || !KEYRING.test(keyring)) throw damaged("a recipient is invalid");
  const recipient = {
    algorithm,
    keyVersion,
    keyring,
    fingerprint: data.slice(nameEnd, fingerprintEnd),
    kemCiphertext: data.slice(fingerprintEnd, ciphertextEnd),
    wrapped: data.slice(ciphertextEnd, end),
  };
  return { recipient, end };
}

export function damaged(detail: string): PqkeepError {
  return new PqkeepError("decryption", `the header is damaged: ${detail}`);
}

async function wrappingKey(recipient: WrappedFileKey, sharedSecret: Uint8Array): ReturnType<typeof aead> {
  const { hash } = kemOf(recipient.algorithm);
  return aead(derived(hash, sharedSecret, [PROTOCOL, "wrapping key", bound(recipient)]));
}

function bound(recipient: WrappedFileKey): Bytes {
  const name = ascii(recipient.keyring);
  const head = new Uint8Array(6);
  head[0] = kemOf(recipient.algorithm).number;
  new DataView(head.buffer).setUint32(1, recipient.keyVersion);
  head[5] = name.length;
  return concatenated(head, name, recipient.fingerprint, recipient.kemCiphertext);
}
