/** Writes an export of the audit log as it arrives. */
import { PqkeepError } from "./errors.js";
import type { Sink } from "./transport.js";

const END_LINE = '{"type":"end"';
const LONGEST_END_LINE = 64 * 1024;

/** Passes JSON lines to a stream. Each log ends with a line that has the number of its records. */
export class Export implements Sink {
  readonly #writer: WritableStreamDefaultWriter<Uint8Array>;
  readonly #decoder = new TextDecoder();
  /** The present line, or undefined if it is no end line. */
  #line: string | undefined = "";
  #isComplete = false;
  #records = 0;
  isBegun = false;

  constructor(target: WritableStream<Uint8Array>) {
    this.#writer = target.getWriter();
  }

  async take(piece: Uint8Array): Promise<void> {
    this.isBegun = true;
    const [first = "", ...lines] = this.#decoder.decode(piece, { stream: true }).split("\n");
    this.#extend(first);
    for (const line of lines) {
      this.#end();
      this.#extend(line);
    }
    await this.#writer.ready.catch(() => {
      throw new PqkeepError("other", "the stream cannot be written");
    });
    this.#writer.write(piece).catch(() => undefined); // `ready` and `close` fail with the same reason
  }

  /** Closes the stream, and returns the number of records. Throws PqkeepError if the last line is missing. */
  async close(): Promise<number> {
    if (!this.#isComplete) throw new PqkeepError("malformed-response", "the export has no end line");
    await this.#writer.close();
    return this.#records;
  }

  async abort(reason: unknown): Promise<void> {
    await this.#writer.abort(reason).catch(() => undefined);
  }

  #extend(part: string): void {
    if (part === "" || this.#line === undefined) return;
    this.#isComplete = false;
    const line = this.#line + part;
    const isOpen = line.startsWith(END_LINE) || END_LINE.startsWith(line);
    this.#line = isOpen && line.length <= LONGEST_END_LINE ? line : undefined;
  }

  #end(): void {
    const records = recordsIn(this.#line ?? "");
    if (records !== undefined) {
      this.#isComplete = true;
      this.#records += records;
    }
    this.#line = "";
  }
}

function recordsIn(line: string): number | undefined {
  try {
    const { records } = JSON.parse(line) as { records?: unknown };
    return Number.isSafeInteger(records) ? (records as number) : undefined;
  } catch {
    return undefined;
  }
}
