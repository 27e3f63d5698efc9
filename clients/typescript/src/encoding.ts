/** Bytes, base64 and text. */

/** Bytes in memory that no other thread shares, as WebCrypto needs them. */
export type Bytes = Uint8Array<ArrayBuffer>;

const CHUNK = 0x8000;

/** Returns bytes as base64 text. */
export function toBase64(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let at = 0; at < bytes.length; at += CHUNK) {
    parts.push(String.fromCharCode(...bytes.subarray(at, at + CHUNK)));
  }
  return btoa(parts.join(""));
}

/** Returns the bytes of base64 text, or undefined if it is not exactly the text of some bytes. */
export function fromBase64(text: string): Bytes | undefined {
  if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) return undefined;
  let decoded: string;
  try {
    decoded = atob(text);
  } catch {
    return undefined;
  }
  const tail = text.slice(-4); // unused bits at its end must be zero
  if (tail.includes("=") && btoa(atob(tail)) !== tail) return undefined;
  return ascii(decoded);
}

export function concatenated(...parts: readonly Uint8Array[]): Bytes {
  const joined = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

export function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, at) => byte === b[at]);
}

/** Compares in time that depends only on the lengths. */
export function equalSecret(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  let difference = 0;
  for (let at = 0; at < a.length; at += 1) difference |= (a[at] as number) ^ (b[at] as number);
  return difference === 0;
}

/** Returns the bytes of a text without characters above 255. */
export function ascii(text: string): Bytes {
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  return bytes;
}

export function hexadecimal(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
