/** The primitives: ML-KEM, X-Wing, SHA-2 and HKDF of noble, and AES-256-GCM of WebCrypto. */
import { hkdf } from "@noble/hashes/hkdf.js";
import { sha256, sha384 } from "@noble/hashes/sha2.js";
import { ml_kem768_x25519 as xWing } from "@noble/post-quantum/hybrid.js";
import { ml_kem1024, ml_kem768 } from "@noble/post-quantum/ml-kem.js";
import { ascii, concatenated, type Bytes } from "../encoding.js";

export const KEY_SIZE = 32;
export const TAG_SIZE = 16;
export const NONCE_SIZE = 12;
export const LARGEST_KEY_VERSION = 2 ** 32 - 1;

type Hash = typeof sha256 | typeof sha384;
export { sha256, sha384 };

/** A key encapsulation mechanism, and its hash function for key derivation. */
export interface Kem {
  /** Its number in a header. */
  readonly number: number;
  readonly publicKeySize: number;
  readonly ciphertextSize: number;
  readonly hash: Hash;
  /** Throws an error for an invalid public key. */
  readonly encapsulate: (publicKey: Uint8Array) => { cipherText: Uint8Array; sharedSecret: Uint8Array };
}

/** The mechanisms, by their names in the API. */
export const KEMS: ReadonlyMap<string, Kem> = new Map<string, Kem>([
  ["Kyber768", { number: 1, publicKeySize: 1184, ciphertextSize: 1088, hash: sha256, encapsulate: (key) => ml_kem768.encapsulate(key) }],
  ["X-Wing", { number: 2, publicKeySize: 1216, ciphertextSize: 1120, hash: sha256, encapsulate: (key) => xWing.encapsulate(key) }],
  ["ML-KEM-1024", { number: 3, publicKeySize: 1568, ciphertextSize: 1568, hash: sha384, encapsulate: (key) => ml_kem1024.encapsulate(key) }],
]);

/** Returns a mechanism by any of its names. Throws RangeError. */
export function kemOf(algorithm: string): Kem {
  const kem = KEMS.get(canonical(algorithm));
  if (kem === undefined) throw new RangeError(`the algorithm must be one of ${[...KEMS.keys()].join(", ")}`);
  return kem;
}

/** Returns the API's name of an algorithm. */
export function canonical(algorithm: string): string {
  return algorithm === "ML-KEM-768" ? "Kyber768" : algorithm;
}

/** Makes a new shared secret of 32 bytes for a public key. Throws RangeError for an invalid one. */
export function encapsulate(algorithm: string, publicKey: Uint8Array): { kemCiphertext: Bytes; sharedSecret: Bytes } {
  const kem = kemOf(algorithm);
  const invalid = `the public key is not one of ${canonical(algorithm)}`;
  if (publicKey.length !== kem.publicKeySize) throw new RangeError(invalid);
  try {
    const made = kem.encapsulate(publicKey);
    return { kemCiphertext: Uint8Array.from(made.cipherText), sharedSecret: Uint8Array.from(made.sharedSecret) };
  } catch {
    throw new RangeError(invalid);
  }
}

/** HKDF (RFC 5869) without a salt. The info is the purpose: each part follows its length in 2 bytes. */
export function derived(hash: Hash, secret: Uint8Array, purpose: readonly (string | Uint8Array)[], size = KEY_SIZE): Bytes {
  const parts = purpose.map((part) => (typeof part === "string" ? ascii(part) : part));
  const info = concatenated(...parts.flatMap((part) => [Uint8Array.of(part.length >> 8, part.length & 0xff), part]));
  return Uint8Array.from(hkdf(hash, secret, undefined, info, size));
}

export type Aead = CryptoKey;

export function aead(key: Bytes): Promise<Aead> {
  return crypto.subtle.importKey("raw", key, "AES-GCM", false, ["encrypt", "decrypt"]);
}

export async function sealed(key: Aead, nonce: Bytes, plaintext: Bytes, aad?: Bytes): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.encrypt(parameters(nonce, aad), key, plaintext));
}

/** Returns the plaintext, or undefined if the tag is wrong. */
export async function opened(key: Aead, nonce: Bytes, ciphertext: Bytes): Promise<Bytes | undefined> {
  try {
    return new Uint8Array(await crypto.subtle.decrypt(parameters(nonce), key, ciphertext));
  } catch (error) {
    if (error instanceof DOMException && error.name === "OperationError") return undefined;
    throw error;
  }
}

function parameters(iv: Bytes, aad?: Bytes): AesGcmParams {
  return { name: "AES-GCM", iv, tagLength: TAG_SIZE * 8, ...(aad === undefined ? {} : { additionalData: aad }) };
}

export function random(size: number): Bytes {
  return crypto.getRandomValues(new Uint8Array(size));
}
