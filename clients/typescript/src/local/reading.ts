/** Sources of bytes, and how they are read in pieces. */
import { concatenated, type Bytes } from "../encoding.js";

/** Bytes in pieces of any sizes. A ReadableStream, a Node stream or an array is one. */
export type Source = AsyncIterable<Uint8Array> | Iterable<Uint8Array> | ReadableStream<Uint8Array>;

/** Reads a source in pieces of chosen sizes. */
export class Reader {
  readonly #pieces: AsyncIterator<Uint8Array> | Iterator<Uint8Array>;
  #rest: Uint8Array = new Uint8Array(0);

  constructor(source: Source) {
    this.#pieces = iterator(source);
  }

  /** Returns `size` bytes, or fewer at the end. */
  async upTo(size: number): Promise<Bytes> {
    const parts = [this.#rest];
    let held = this.#rest.length;
    while (held < size) {
      const { done, value } = await this.#pieces.next();
      if (done === true) break;
      if (!(value instanceof Uint8Array)) throw new TypeError("a source must yield Uint8Arrays");
      parts.push(value);
      held += value.length;
    }
    const joined = parts.length === 1 ? (parts[0] as Uint8Array) : concatenated(...parts);
    this.#rest = joined.subarray(size);
    return Uint8Array.from(joined.subarray(0, size));
  }

  /** Yields pieces of `size` bytes, and whether each is the last. There is at least one, which may be empty. */
  async *pieces(size: number): AsyncGenerator<{ piece: Bytes; isLast: boolean }, void> {
    let piece = await this.upTo(size);
    for (;;) {
      const following = piece.length === size ? await this.upTo(size) : new Uint8Array(0);
      const isLast = following.length === 0;
      yield { piece, isLast };
      if (isLast) return;
      piece = following;
    }
  }

  /** Releases the source. */
  async end(): Promise<void> {
    await this.#pieces.return?.();
  }
}

function iterator(source: Source): AsyncIterator<Uint8Array> | Iterator<Uint8Array> {
  if (Symbol.asyncIterator in source) return source[Symbol.asyncIterator]();
  if (Symbol.iterator in source) return source[Symbol.iterator]();
  return fromStream(source as ReadableStream<Uint8Array>); // some browsers cannot iterate a stream
}

async function* fromStream(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void> {
  const reader = stream.getReader();
  let isComplete = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        isComplete = true;
        return;
      }
      yield value;
    }
  } finally {
    if (!isComplete) await reader.cancel().catch(() => undefined);
    reader.releaseLock();
  }
}

/** Returns a generator's pieces as a stream. Nothing is generated before it is asked for. */
export function asStream(pieces: AsyncGenerator<Uint8Array, void>): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const { done, value } = await pieces.next();
        if (done === true) controller.close();
        else controller.enqueue(value);
      },
      async cancel() {
        await pieces.return();
      },
    },
    { highWaterMark: 0 },
  );
}

export async function joined(pieces: AsyncIterable<Uint8Array>): Promise<Bytes> {
  const all: Uint8Array[] = [];
  for await (const piece of pieces) all.push(piece);
  return concatenated(...all);
}
