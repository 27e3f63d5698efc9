/** Warnings of rules that will end an operation of this program. */
import { asObject, own } from "./shapes.js";

/** A rule of the tenant will end an operation, which the service still did. */
export interface RuleWarning {
  readonly rule: string;
  /** The time from which the service warns. */
  readonly deprecation: Date | undefined;
  /** The time from which the service refuses. */
  readonly sunset: Date | undefined;
  readonly message: string;
}

const LINK = /<\/api\/v1\/rules\/algorithms\/([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})>; rel="deprecation"/;
const RULE = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$/;
/** The most rules that a client warns of. So a hostile service cannot fill its memory. */
const MOST_RULES = 1000;

/** Warns once of each rule. */
export class RuleWarnings {
  readonly #seen = new Set<string>();
  readonly #tell: (warning: RuleWarning) => void;

  constructor(tell: (warning: RuleWarning) => void) {
    this.#tell = tell;
  }

  /** Takes the headers of a response. */
  inHeaders(headers: Headers): void {
    const deprecation = headers.get("Deprecation");
    const rule = LINK.exec(headers.get("Link") ?? "")?.[1];
    if (deprecation === null || rule === undefined) return;
    const since = /^@(\d{1,12})$/.exec(deprecation)?.[1];
    this.#warn(rule, since === undefined ? undefined : new Date(Number(since) * 1000), time(headers.get("Sunset")));
  }

  /** Takes the data of a response to a batch. */
  inItems(data: unknown): void {
    const results = own(asObject(data) ?? {}, "results");
    for (const result of Array.isArray(results) ? results : []) {
      const warning = asObject(own(asObject(result) ?? {}, "warning"));
      const rule = warning && own(warning, "rule");
      if (warning === undefined || typeof rule !== "string" || !RULE.test(rule)) continue;
      this.#warn(rule, time(own(warning, "deprecation")), time(own(warning, "sunset")));
    }
  }

  #warn(rule: string, deprecation: Date | undefined, sunset: Date | undefined): void {
    if (this.#seen.has(rule) || this.#seen.size >= MOST_RULES) return;
    this.#seen.add(rule);
    const ends = sunset === undefined ? "ends" : `denies from ${sunset.toISOString()} on`;
    const message = `the rule ${rule} ${ends} an algorithm that this program uses for new data or keys`;
    this.#tell({ rule, deprecation, sunset, message });
  }
}

function time(text: unknown): Date | undefined {
  const date = typeof text === "string" ? new Date(text) : undefined;
  return date === undefined || Number.isNaN(date.getTime()) ? undefined : date;
}
