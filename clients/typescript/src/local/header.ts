/** The header before the segments: one or two slots with the recipients. See docs/local-format.md. */
import { ascii, concatenated, equal, hexadecimal, type Bytes } from "../encoding.js";
import { PqkeepError } from "../errors.js";
import { sha384 } from "./primitives.js";
import type { Reader } from "./reading.js";
import {
  damaged,
  encodedRecipient,
  fingerprintOf,
  FileKey,
  identity,
  LARGEST_RECIPIENT,
  MAC_SIZE,
  recipientAt,
  unwrap,
  wrap,
  type Recipient,
  type WrappedFileKey,
} from "./recipients.js";

const MAGIC = ascii("pqkeep\0");
const FORMAT = 2;
const CHECKSUM_SIZE = 48;
const LARGEST_SLOT = 65_536;
/** With two slots, their size is a multiple of this. */
const BLOCK = 4096;
const PREFIX_SIZE = MAGIC.length + 1 + 1 + 4;
const RECIPIENTS_AT = PREFIX_SIZE + 8 + 1;
const END_SIZE = MAC_SIZE + CHECKSUM_SIZE;
const SMALLEST_SLOT = RECIPIENTS_AT + END_SIZE;
export const MOST_RECIPIENTS = 32;
/** Recipients that the header of a file or a stream has capacity for. */
export const DEFAULT_CAPACITY = 4;

export interface Layout {
  readonly slots: number;
  readonly slotSize: number;
}

/** The facts in a header. They are readable without a key, and not authenticated. */
export interface Header {
  readonly recipients: readonly WrappedFileKey[];
  readonly layout: Layout;
  /** The number of changes to the recipients, plus one. */
  readonly sequence: bigint;
  /** The slot in use. */
  readonly slot: Bytes;
}

/** Recovers a shared secret of 32 bytes. Returns undefined for an unknown key. */
export type Decapsulate = (recipient: {
  readonly kemCiphertext: Uint8Array;
  readonly keyVersion: number;
  readonly algorithm: string;
  readonly keyring: string;
}) => Promise<Uint8Array | undefined> | Uint8Array | undefined;

export interface Opened {
  readonly fileKey: FileKey;
  /** The recipient that unwrapped the file key. */
  readonly recipient: WrappedFileKey;
}

/** Returns a layout. With capacity 0 there is one slot, as long as necessary. Throws RangeError. */
export function layoutFor(recipients: readonly WrappedFileKey[], capacity: number): Layout {
  if (!(Number.isInteger(capacity) && capacity >= 0 && capacity <= MOST_RECIPIENTS)) {
    throw new RangeError(`capacity must be 0 to ${MOST_RECIPIENTS} recipients`);
  }
  const needed = neededBy(recipients);
  if (capacity === 0) return { slots: 1, slotSize: needed };
  const wanted = Math.max(needed, SMALLEST_SLOT + capacity * LARGEST_RECIPIENT);
  return { slots: 2, slotSize: Math.ceil(wanted / BLOCK) * BLOCK };
}

export function hasCapacityFor(layout: Layout, recipients: readonly WrappedFileKey[]): boolean {
  return layout.slots > 1 && neededBy(recipients) <= layout.slotSize;
}

/** Returns a header: its slots are equal. */
export function headerOf(
  fileKey: FileKey,
  recipients: readonly WrappedFileKey[],
  layout: Layout,
  sequence: bigint,
): Bytes {
  const content = new Uint8Array(layout.slotSize - END_SIZE);
  content.set(MAGIC);
  content[MAGIC.length] = FORMAT;
  content[MAGIC.length + 1] = layout.slots;
  const view = new DataView(content.buffer);
  view.setUint32(MAGIC.length + 2, layout.slotSize);
  view.setBigUint64(PREFIX_SIZE, sequence);
  content[RECIPIENTS_AT - 1] = recipients.length;
  content.set(concatenated(...recipients.map(encodedRecipient)), RECIPIENTS_AT);
  const authenticated = concatenated(content, fileKey.mac(content));
  const slot = concatenated(authenticated, sha384(authenticated));
  return layout.slots === 1 ? slot : concatenated(slot, slot);
}

/**
 * Returns recipients without those of some fingerprints, and with new ones at the end.
 *
 * A recipient that is there already stays unchanged. Throws RangeError for an unknown fingerprint, an
 * invalid public key, and if no or too many recipients remain.
 */
export async function changedRecipients(
  before: readonly WrappedFileKey[],
  fileKey: FileKey,
  add: readonly Recipient[],
  remove: readonly Uint8Array[] = [],
): Promise<readonly WrappedFileKey[]> {
  const removed = new Set(remove.map(hexadecimal));
  const kept = before.filter((each) => !removed.has(hexadecimal(each.fingerprint)));
  const known = new Set(before.map((each) => hexadecimal(each.fingerprint)));
  if ([...removed].some((each) => !known.has(each))) {
    throw new RangeError("the recipient to remove is not in the header");
  }
  const there = new Set(kept.map((each) => identity(each.algorithm, each.fingerprint)));
  const wanted = new Map(add.map((each) => [identity(each.algorithm, fingerprintOf(each)), each]));
  const added = [...wanted].filter(([name]) => !there.has(name)).map(([, recipient]) => recipient);
  const count = kept.length + added.length;
  if (count < 1 || count > MOST_RECIPIENTS) {
    throw new RangeError(`there must be 1 to ${MOST_RECIPIENTS} recipients`);
  }
  return [...kept, ...(await Promise.all(added.map((each) => wrap(fileKey, each))))];
}

/** Reads a header. Throws PqkeepError of the kinds `unreadable-input` and `decryption`. */
export async function readHeaderOf(reader: Reader): Promise<Header> {
  const prefix = await reader.upTo(PREFIX_SIZE);
  const layout = layoutIn(prefix);
  const size = layout.slots * layout.slotSize;
  const data = concatenated(prefix, await reader.upTo(size - PREFIX_SIZE));
  if (data.length < size) throw cut();
  let slot: Bytes | undefined;
  for (let at = 0; at < size; at += layout.slotSize) {
    const candidate = data.slice(at, at + layout.slotSize);
    if (!isWhole(candidate, prefix)) continue;
    if (slot === undefined || sequenceOf(candidate) > sequenceOf(slot)) slot = candidate;
  }
  if (slot === undefined) throw damaged("no slot is valid");
  return { recipients: recipientsIn(slot), layout, sequence: sequenceOf(slot), slot };
}

/** Unwraps the file key with the first recipient with a known key. Throws PqkeepError. */
export async function openHeader(header: Header, decapsulate: Decapsulate): Promise<Opened> {
  const failures: PqkeepError[] = [];
  for (const recipient of header.recipients) {
    try {
      const sharedSecret = await decapsulate(recipient);
      if (sharedSecret === undefined) throw new PqkeepError("not-found", "the key of the recipient is unknown");
      return { fileKey: await fileKeyOf(header, recipient, sharedSecret), recipient };
    } catch (error) {
      if (!(error instanceof PqkeepError && isSkipped(error))) throw error;
      failures.push(error);
    }
  }
  const [first] = failures as [PqkeepError, ...PqkeepError[]];
  const areAlike = failures.every((failure) => failure.kind === first.kind && failure.code === first.code);
  throw areAlike
    ? first
    : new PqkeepError("decryption", `none of the ${failures.length} recipients' keys can be used here`);
}

async function fileKeyOf(header: Header, recipient: WrappedFileKey, sharedSecret: Uint8Array): Promise<FileKey> {
  const fileKey = await unwrap(recipient, sharedSecret);
  const { slot } = header;
  const content = slot.subarray(0, slot.length - END_SIZE);
  const mac = slot.subarray(slot.length - END_SIZE, slot.length - CHECKSUM_SIZE);
  if (!fileKey.hasAuthenticated(content, mac)) {
    throw damaged("its recipients were changed without the file key");
  }
  return fileKey;
}

/** Returns true for the error of one recipient's key. The next recipient is tried then. */
function isSkipped(error: PqkeepError): boolean {
  const kinds = ["decryption", "not-found", "permission-denied"];
  return kinds.includes(error.kind) || error.code === "ERR_KEM_002" || error.code === "ERR_KEM_006";
}

function neededBy(recipients: readonly WrappedFileKey[]): number {
  return recipients.reduce((size, each) => size + encodedRecipient(each).length, SMALLEST_SLOT);
}

function layoutIn(prefix: Bytes): Layout {
  const magic = prefix.subarray(0, MAGIC.length);
  if (!equal(magic, MAGIC.subarray(0, magic.length)) || prefix.length === 0) {
    throw new PqkeepError("unreadable-input", "the input is not data that pqkeep encrypted locally");
  }
  const format = prefix[MAGIC.length];
  if (format !== undefined && format !== FORMAT) {
    throw new PqkeepError("unreadable-input", "the input has a format that this version does not know");
  }
  if (prefix.length < PREFIX_SIZE) throw cut();
  const slots = prefix[MAGIC.length + 1] as number;
  const slotSize = new DataView(prefix.buffer).getUint32(MAGIC.length + 2);
  if ((slots !== 1 && slots !== 2) || slotSize < SMALLEST_SLOT || slotSize > LARGEST_SLOT) {
    throw damaged("its size is invalid");
  }
  return { slots, slotSize };
}

function cut(): PqkeepError {
  return new PqkeepError("unreadable-input", "the input was cut off within its header: get the whole data again");
}

function isWhole(slot: Bytes, prefix: Bytes): boolean {
  const checksum = slot.subarray(slot.length - CHECKSUM_SIZE);
  return (
    equal(slot.subarray(0, PREFIX_SIZE), prefix) &&
    equal(sha384(slot.subarray(0, slot.length - CHECKSUM_SIZE)), checksum)
  );
}

function sequenceOf(slot: Bytes): bigint {
  return new DataView(slot.buffer).getBigUint64(PREFIX_SIZE);
}

function recipientsIn(slot: Bytes): readonly WrappedFileKey[] {
  const content = slot.slice(0, slot.length - END_SIZE);
  const count = content[RECIPIENTS_AT - 1] as number;
  if (count < 1 || count > MOST_RECIPIENTS) throw damaged("its number of recipients is invalid");
  const recipients: WrappedFileKey[] = [];
  let at = RECIPIENTS_AT;
  for (let number = 0; number < count; number += 1) {
    const { recipient, end } = recipientAt(content, at);
    recipients.push(recipient);
    at = end;
  }
  if (new Set(recipients.map((each) => identity(each.algorithm, each.fingerprint))).size < count) {
    throw damaged("a recipient is there twice");
  }
  if (content.subarray(at).some((byte) => byte !== 0)) throw damaged("data follows its recipients");
  return recipients;
}
