// The local format: the vectors that Python's client passes, and what a reader refuses.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ml_kem768_x25519 as xWing } from "@noble/post-quantum/hybrid.js";
import { ml_kem1024, ml_kem768 } from "@noble/post-quantum/ml-kem.js";
import { PqkeepError } from "../src/index.js";
import { decrypt, decryptStream, encrypt, readHeader, reEncrypt, type Decapsulate } from "../src/local/index.js";
import { headerOf, layoutFor } from "../src/local/header.js";
import { FileKey, fingerprintOf, type Recipient, type WrappedFileKey } from "../src/local/recipients.js";
import { encryptedSegments } from "../src/local/segments.js";
import { joined, Reader } from "../src/local/reading.js";
import { concatenated } from "../src/encoding.js";

interface Key {
  key_version: number;
  keyring: string;
  private_key: string;
  fingerprint: string;
  kem_ciphertext: string;
  shared_secret: string;
}
interface File {
  name: string;
  recipients: string[];
  size: number;
  slots: number;
  slot_size: number;
  sequence: number;
  file_key: string;
  sha256: string;
  file?: string;
}
type Part = string | [name: string, start: number, end: number];

const KEMS = { Kyber768: ml_kem768, "X-Wing": xWing, "ML-KEM-1024": ml_kem1024 };
type Algorithm = keyof typeof KEMS;

const vectors = JSON.parse(readFileSync("../../sdk/tests/local/vectors.json", "utf8")) as {
  keys: Record<Algorithm, Key>;
  files: File[];
  interrupted: { why: string; sequence: number; parts: Part[] }[];
  refused: { why: string; parts: Part[] }[];
};

function bytes(hex: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(Buffer.from(hex, "hex"));
}

function plaintextOf(size: number): Uint8Array {
  return Uint8Array.from({ length: size }, (_, at) => at % 251);
}

/** Recovers shared secrets with the vectors' private keys. */
const decapsulate: Decapsulate = ({ algorithm, kemCiphertext }) => {
  const key = vectors.keys[algorithm as Algorithm];
  const kem = KEMS[algorithm as Algorithm];
  return kem.decapsulate(kemCiphertext, kem.keygen(bytes(key.private_key)).secretKey);
};

function recipient(algorithm: Algorithm): Recipient {
  const key = vectors.keys[algorithm];
  const publicKey = KEMS[algorithm].keygen(bytes(key.private_key)).publicKey;
  return { publicKey, algorithm, keyVersion: key.key_version, keyring: key.keyring };
}

const files = new Map<string, Uint8Array>();
for (const file of vectors.files) {
  const fileKey = new FileKey(bytes(file.file_key));
  const wrapped: WrappedFileKey[] = [];
  for (const algorithm of file.recipients) {
    const key = vectors.keys[algorithm as Algorithm];
    const unfinished = {
      algorithm,
      keyVersion: key.key_version,
      keyring: key.keyring,
      fingerprint: bytes(key.fingerprint),
      kemCiphertext: bytes(key.kem_ciphertext),
      wrapped: new Uint8Array(0),
    };
    wrapped.push(await fileKey.wrappedWith(unfinished, bytes(key.shared_secret)));
  }
  const layout = file.slots === 1 ? layoutFor(wrapped, 0) : { slots: 2, slotSize: file.slot_size };
  const header = headerOf(fileKey, wrapped, layout, BigInt(file.sequence));
  const body = await joined(encryptedSegments(new Reader([plaintextOf(file.size)]), fileKey.dataKey()));
  files.set(file.name, concatenated(header, body));
}

function assembled(parts: Part[]): Uint8Array {
  return concatenated(
    ...parts.map((part) =>
      typeof part === "string" ? bytes(part) : (files.get(part[0]) as Uint8Array).subarray(part[1], part[2]),
    ),
  );
}

function isRefusal(error: unknown): boolean {
  return error instanceof PqkeepError && ["decryption", "unreadable-input"].includes(error.kind);
}

test("the keys of the vectors: fingerprints and shared secrets", () => {
  for (const algorithm of Object.keys(KEMS) as Algorithm[]) {
    const key = vectors.keys[algorithm];
    assert.equal(Buffer.from(fingerprintOf(recipient(algorithm))).toString("hex"), key.fingerprint);
    const kem = KEMS[algorithm];
    const secret = kem.decapsulate(bytes(key.kem_ciphertext), kem.keygen(bytes(key.private_key)).secretKey);
    assert.equal(Buffer.from(secret).toString("hex"), key.shared_secret);
  }
});

test("files are written byte for byte, and read", async () => {
  for (const file of vectors.files) {
    const written = files.get(file.name) as Uint8Array;
    assert.equal(createHash("sha256").update(written).digest("hex"), file.sha256, file.name);
    if (file.file !== undefined) assert.equal(Buffer.from(written).toString("hex"), file.file);
    assert.deepEqual(await decrypt(written, decapsulate), plaintextOf(file.size), file.name);
    assert.equal((await readHeader(written)).sequence, BigInt(file.sequence));
  }
});

test("interrupted changes are read", async () => {
  for (const { why, sequence, parts } of vectors.interrupted) {
    const data = assembled(parts);
    assert.equal((await readHeader(data)).sequence, BigInt(sequence), why);
    await decrypt(data, decapsulate);
  }
});

test("what a reader must refuse is refused", async () => {
  assert.ok(vectors.refused.length > 20);
  for (const { why, parts } of vectors.refused) {
    await assert.rejects(decrypt(assembled(parts), decapsulate), isRefusal, why);
  }
});

test("every changed byte of a header and every cut is refused", async () => {
  const data = files.get("Kyber768 12") as Uint8Array;
  for (let at = 0; at < data.length; at += 7) {
    const changed = Uint8Array.from(data);
    changed[at] = (changed[at] as number) ^ 0x40;
    await assert.rejects(decrypt(changed, decapsulate), isRefusal, `byte ${at}`);
    await assert.rejects(decrypt(data.subarray(0, at), decapsulate), isRefusal, `cut at ${at}`);
  }
});

test("own files of all sizes and recipients are read, in pieces of any size", async () => {
  const recipients = [recipient("Kyber768"), recipient("X-Wing"), recipient("ML-KEM-1024")];
  for (const size of [0, 1, 262_143, 262_144, 262_145, 600_000]) {
    const plaintext = plaintextOf(size);
    const data = await encrypt(plaintext, { recipients, capacity: size % 2 === 0 ? 0 : 4 });
    assert.deepEqual(await decrypt(data, decapsulate), plaintext);
    const pieces = Array.from({ length: Math.ceil(data.length / 1000) }, (_, at) =>
      data.subarray(at * 1000, at * 1000 + 1000),
    );
    assert.deepEqual(await joined(decryptStream(pieces, decapsulate) as AsyncIterable<Uint8Array>), plaintext);
  }
});

test("segments that were reordered, repeated, removed or mixed are refused", async () => {
  const recipients = [recipient("Kyber768")];
  const segment = 262_160;
  const data = await encrypt(plaintextOf(262_144 * 3), { recipients });
  const other = await encrypt(plaintextOf(262_144 * 3), { recipients });
  const start = (await readHeader(data)).slot.length;
  const part = (from: Uint8Array, at: number): Uint8Array => from.subarray(start + at * segment, start + (at + 1) * segment);
  const header = data.subarray(0, start);
  for (const order of [[1, 0, 2], [0, 1], [0, 2], [0, 0, 1, 2], [0, 1, 2, 2], [2], []]) {
    const changed = concatenated(header, ...order.map((at) => part(data, at)));
    await assert.rejects(decrypt(changed, decapsulate), isRefusal, order.join());
  }
  const mixed = concatenated(header, part(data, 0), part(other, 1), part(data, 2));
  await assert.rejects(decrypt(mixed, decapsulate), isRefusal);
  assert.equal((await decrypt(data, decapsulate)).length, 262_144 * 3);
});

test("recipients are changed, and a new file key encrypts again", async () => {
  const plaintext = plaintextOf(300_000);
  const data = await encrypt(plaintext, { recipients: [recipient("Kyber768")] });
  const both = await reEncrypt(data, { add: [recipient("X-Wing")] }, decapsulate);
  assert.deepEqual((await readHeader(both)).recipients.map((each) => each.algorithm), ["Kyber768", "X-Wing"]);
  assert.deepEqual(await decrypt(both, decapsulate), plaintext);
  const moved = await reEncrypt(both, { to: recipient("ML-KEM-1024"), newFileKey: true, remove: [fingerprintOf(recipient("X-Wing"))] }, decapsulate);
  assert.deepEqual((await readHeader(moved)).recipients.map((each) => each.algorithm), ["ML-KEM-1024"]);
  assert.deepEqual(await decrypt(moved, decapsulate), plaintext);
  await assert.rejects(reEncrypt(both, { to: recipient("ML-KEM-1024"), newFileKey: true }, decapsulate), RangeError);
  await assert.rejects(reEncrypt(both, { remove: [new Uint8Array(32)] }, decapsulate), RangeError);
});

test("invalid public keys and impossible numbers of recipients are refused", async () => {
  const valid = recipient("Kyber768");
  const short = { ...valid, publicKey: valid.publicKey.subarray(1) };
  const large = { ...valid, publicKey: Uint8Array.from(valid.publicKey, () => 0xff) };
  for (const recipients of [[short], [large], [], [{ ...valid, algorithm: "constructor" }], [{ ...valid, keyring: "../x" }]]) {
    await assert.rejects(encrypt(new Uint8Array(1), { recipients }), RangeError);
  }
});
