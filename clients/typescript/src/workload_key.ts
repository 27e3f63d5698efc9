/** The short-lived API key of a workload. */
import { PqkeepError } from "./errors.js";
import { checkedKey, type Workload } from "./settings.js";

const LONGEST_TOKEN = 12 * 1024;
/** The part of a key's life after which it is renewed. */
const RENEWED_AFTER = 2 / 3;
/** The pause after a failed renewal of a key that is still valid. */
const RETRY_MILLISECONDS = 15_000;

/** The fields of the exchange. */
export interface TokenExchange {
  readonly grant_type: "urn:ietf:params:oauth:grant-type:token-exchange";
  readonly subject_token: string;
  readonly subject_token_type: "urn:ietf:params:oauth:token-type:jwt";
  readonly role: string;
}

export interface ExchangedKey {
  readonly access_token: string;
  readonly expires_in: number;
}

/** Gets and renews the API key. Concurrent calls share one exchange. */
export class WorkloadKey {
  readonly #workload: Workload;
  readonly #exchange: (fields: TokenExchange) => Promise<ExchangedKey>;
  #key: string | undefined;
  #endsAt = 0;
  #renewAt = 0;
  #renewing: Promise<void> | undefined;

  constructor(workload: Workload, exchange: (fields: TokenExchange) => Promise<ExchangedKey>) {
    this.#workload = workload;
    this.#exchange = exchange;
  }

  /** Returns the key. Gets or renews it first if it is due. */
  async get(): Promise<string> {
    const now = performance.now();
    const valid = this.#key !== undefined && now < this.#endsAt ? this.#key : undefined;
    if (valid !== undefined && now < this.#renewAt) return valid;
    this.#renewing ??= this.#renew().finally(() => {
      this.#renewing = undefined;
    });
    try {
      await this.#renewing;
    } catch (error) {
      if (valid === undefined) throw error;
      this.#renewAt = performance.now() + RETRY_MILLISECONDS;
      return valid;
    }
    return this.#key as string;
  }

  /** Drops a key that the service refused, unless there is a new one. */
  forget(refused: string): void {
    if (this.#key === refused) this.#key = undefined;
  }

  async #renew(): Promise<void> {
    const { token, role } = this.#workload;
    const subject = (typeof token === "string" ? token : await token()).trim();
    if (!/^[!-~]+$/.test(subject) || subject.length > LONGEST_TOKEN) {
      throw new PqkeepError("configuration", "the platform's token must be a signed JWT");
    }
    const made = await this.#exchange({
      grant_type: "urn:ietf:params:oauth:grant-type:token-exchange",
      subject_token: subject,
      subject_token_type: "urn:ietf:params:oauth:token-type:jwt",
      role,
    });
    const now = performance.now();
    this.#key = checkedKey(made.access_token);
    this.#endsAt = now + made.expires_in * 1000;
    this.#renewAt = now + made.expires_in * 1000 * RENEWED_AFTER;
  }
}
