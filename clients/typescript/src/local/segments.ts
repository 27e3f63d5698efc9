/** The encrypted data after the header: segments of 256 KiB (STREAM construction). */
import type { Bytes } from "../encoding.js";
import { PqkeepError } from "../errors.js";
import { aead, NONCE_SIZE, opened, sealed, TAG_SIZE } from "./primitives.js";
import type { Reader } from "./reading.js";

const SEGMENT_SIZE = 256 * 1024;
const MOST_SEGMENTS = 2 ** 32;

export async function* encryptedSegments(reader: Reader, dataKey: Bytes): AsyncGenerator<Bytes, void> {
  const key = await aead(dataKey);
  let number = 0;
  for await (const { piece, isLast } of reader.pieces(SEGMENT_SIZE)) {
    yield await sealed(key, nonce(number, isLast), piece);
    number += 1;
  }
}

/** Yields the plaintext of each segment after its authentication. Throws PqkeepError. */
export async function* decryptedSegments(reader: Reader, dataKey: Bytes): AsyncGenerator<Bytes, void> {
  const key = await aead(dataKey);
  let number = 0;
  for await (const { piece, isLast } of reader.pieces(SEGMENT_SIZE + TAG_SIZE)) {
    if (piece.length < TAG_SIZE) {
      throw new PqkeepError("unreadable-input", `the input was cut off in segment ${number}: get the whole data again`);
    }
    const plaintext = await opened(key, nonce(number, isLast), piece);
    if (plaintext === undefined) {
      throw new PqkeepError(
        "decryption",
        `segment ${number} is damaged or not in its place, or the data was cut off there`,
      );
    }
    if (number > 0 && plaintext.length === 0) {
      throw new PqkeepError("decryption", "the data ends with an empty segment");
    }
    yield plaintext;
    number += 1;
  }
}

function nonce(number: number, isLast: boolean): Bytes {
  if (number >= MOST_SEGMENTS) throw new RangeError("this is more data than one file can hold");
  const bytes = new Uint8Array(NONCE_SIZE);
  new DataView(bytes.buffer).setUint32(7, number);
  bytes[11] = isLast ? 1 : 0;
  return bytes;
}
