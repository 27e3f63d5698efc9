/** A client of one service with one credential. */
import { toBase64 } from "./encoding.js";
import { PqkeepError } from "./errors.js";
import { Export } from "./export.js";
import { OPERATIONS } from "./generated/operations.js";
import type { Arguments, Data, Fields, Listing, Operation } from "./operations.js";
import { settingsOf, type ClientOptions } from "./settings.js";
import { own, type JsonObject, type Row } from "./shapes.js";
import { Transport, type CallOptions, type Sink } from "./transport.js";
import { WorkloadKey } from "./workload_key.js";

/** A list that never ends is refused after so many pages. */
const MOST_PAGES = 10_000;

type Method<O extends Operation> = (...args: Arguments<O, CallOptions>) => Promise<Data<O>>;
type With<O extends Operation, Name extends PropertyKey> = Data<O> & {
  [K in Name & keyof Data<O>]-?: NonNullable<Data<O>[K]>;
};
type Verification = { [O in Operation]: Data<O> extends { valid: boolean } ? O : never }[Operation];
type Check<O extends Operation> = (...args: Arguments<O, CallOptions>) => Promise<boolean>;

/** Calls the API of pqkeep. Every failure is a PqkeepError. It may be used concurrently. */
export class Client {
  readonly #transport: Transport;
  readonly #apiKey: string | undefined;
  readonly #workload: WorkloadKey | undefined;

  /** Checks the options without connecting. Throws PqkeepError of the kind `configuration`. */
  constructor(options: ClientOptions) {
    const settings = settingsOf(options);
    this.#transport = new Transport(settings);
    this.#apiKey = settings.apiKey;
    this.#workload =
      settings.workload &&
      new WorkloadKey(
        settings.workload,
        async (fields) =>
          (await this.#transport.run(OPERATIONS.exchange_token, { ...fields }, undefined, {})) as Data<"exchange_token">,
      );
  }

  /** Calls an operation by its name in the API's description, and returns its response's data. */
  async call<O extends Operation>(operation: O, ...args: Arguments<O, CallOptions>): Promise<Data<O>> {
    const [fields = {}, options = {}] = args;
    return (await this.#run(OPERATIONS[operation], fields as JsonObject, options)) as Data<O>;
  }

  /** Yields the responses to all pages of a list. */
  async *pages<O extends Listing>(operation: O, ...args: Arguments<O, CallOptions>): AsyncGenerator<Data<O>, void> {
    const [fields = {}, options = {}] = args;
    let asked = fields as JsonObject;
    const seen = new Set<unknown>();
    for (let empty = 0; ; ) {
      const data = (await this.#run(OPERATIONS[operation], asked, options)) as Data<O>;
      yield data;
      const next = own(data as JsonObject, "next") ?? undefined;
      if (next === undefined) return;
      empty = Object.values(data as JsonObject).some((value) => Array.isArray(value) && value.length > 0) ? 0 : empty + 1;
      if (seen.has(next) || empty >= MOST_PAGES) {
        throw new PqkeepError("malformed-response", "the pages of the list repeat, or never end", { field: "next" });
      }
      if (seen.size < MOST_PAGES) seen.add(next);
      asked = { ...asked, after: next };
    }
  }

  async #run(row: Row, fields: JsonObject, options: CallOptions, sink?: Sink): Promise<unknown> {
    if (this.#workload === undefined) return this.#transport.run(row, fields, this.#apiKey, options, sink);
    const key = await this.#workload.get();
    try {
      return await this.#transport.run(row, fields, key, options, sink);
    } catch (error) {
      if (!(error instanceof PqkeepError && error.kind === "authentication")) throw error;
      this.#workload.forget(key); // its role has changed
    }
    return this.#transport.run(row, fields, await this.#workload.get(), options, sink);
  }

  async #exported(
    target: WritableStream<Uint8Array>,
    fields: Fields<"export_audit_log"> = {},
    options: CallOptions = {},
  ): Promise<number> {
    const sink = new Export(target);
    try {
      await this.#run(OPERATIONS.export_audit_log, fields as JsonObject, options, sink);
      return await sink.close();
    } catch (error) {
      await sink.abort(error);
      throw error;
    }
  }

  #method<O extends Operation>(operation: O): Method<O> {
    return (...args) => this.call(operation, ...args);
  }

  /** Calls an operation, and requires fields that only some of its responses have. */
  async #requiring<O extends Operation, Name extends keyof Data<O> & string>(
    names: readonly Name[],
    operation: O,
    ...args: Arguments<O, CallOptions>
  ): Promise<With<O, Name>> {
    const data = await this.call(operation, ...args);
    const field = names.find((name) => (own(data as JsonObject, name) ?? undefined) === undefined);
    if (field !== undefined) {
      throw new PqkeepError("malformed-response", "a field of the response is missing or malformed", { field });
    }
    return data as With<O, Name>;
  }

  /** Returns a method that resolves to the boolean alone: an object would always be true. */
  #check<O extends Verification>(operation: O): Check<O> {
    return async (...args) => ((await this.call(operation, ...args)) as { valid: boolean }).valid;
  }

  /** Encryption, key wrap and shared secrets. */
  readonly kem = {
    encrypt: (fields: Omit<Fields<"encrypt">, "format" | "public_key">, options?: CallOptions) =>
      this.#requiring(["ciphertext", "key_version"], "encrypt", fields, options),
    decrypt: this.#method("decrypt"),
    /** Encrypts to a text that names its key. */
    encryptToEnvelope: (fields: Omit<Fields<"encrypt">, "format" | "public_key">, options?: CallOptions) =>
      this.#requiring(["envelope"], "encrypt", { ...fields, format: "envelope" }, options),
    decryptEnvelope: (fields: Pick<Fields<"decrypt">, "associated_data" | "context"> & { envelope: string }, options?: CallOptions) =>
      this.call("decrypt", fields, options),
    /** Encrypts for the owner of a public key. */
    encryptToPublicKey: (
      fields: Pick<Fields<"encrypt">, "plaintext" | "algorithm" | "associated_data"> & { public_key: PublicKey },
      options?: CallOptions,
    ) => this.#requiring(["ciphertext"], "encrypt", sentKey(fields), options),
    encapsulate: (fields: Omit<Fields<"encapsulate">, "public_key"> & { key_version: number }, options?: CallOptions) =>
      this.#requiring(["key_version"], "encapsulate", fields, options),
    /** Makes a shared secret with the owner of a public key. */
    encapsulateToPublicKey: (
      fields: Pick<Fields<"encapsulate">, "algorithm"> & { public_key: PublicKey },
      options?: CallOptions,
    ) => this.call("encapsulate", sentKey(fields), options),
    decapsulate: this.#method("decapsulate"),
    wrap: this.#method("wrap"),
    unwrap: this.#method("unwrap"),
    dataKey: this.#method("generate_data_key"),
    reEncrypt: this.#method("re_encrypt"),
    encryptMany: this.#method("encrypt_batch"),
    decryptMany: this.#method("decrypt_batch"),
    encapsulateMany: this.#method("encapsulate_batch"),
    decapsulateMany: this.#method("decapsulate_batch"),
    wrapMany: this.#method("wrap_batch"),
    unwrapMany: this.#method("unwrap_batch"),
    dataKeyMany: this.#method("generate_data_key_batch"),
    reEncryptMany: this.#method("re_encrypt_batch"),
  };

  /** Signatures. Verifications return false for a signature that does not verify. */
  readonly signatures = {
    sign: this.#method("sign"),
    verify: this.#check("verify"),
    signHash: this.#method("sign_hash"),
    verifyHash: this.#check("verify_hash"),
    signMu: this.#method("sign_mu"),
    verifyMu: this.#check("verify_mu"),
    signJws: this.#method("sign_jws"),
    signMany: this.#method("sign_batch"),
    verifyMany: this.#method("verify_batch"),
    signHashMany: this.#method("sign_hash_batch"),
    verifyHashMany: this.#method("verify_hash_batch"),
    signMuMany: this.#method("sign_mu_batch"),
    verifyMuMany: this.#method("verify_mu_batch"),
  };

  /** Message authentication codes. `verify` returns false for a wrong one. */
  readonly macs = {
    compute: this.#method("compute_mac"),
    verify: this.#check("verify_mac"),
    computeMany: this.#method("compute_mac_batch"),
    verifyMany: this.#method("verify_mac_batch"),
  };

  /** Hashes and random bytes. */
  readonly tools = { hash: this.#method("hash"), random: this.#method("generate_random") };

  /** The lifecycle of keys. */
  readonly keys = {
    generate: this.#method("generate_key"),
    getImportKey: this.#method("get_import_key"),
    importKey: this.#method("import_key"),
    rotate: this.#method("rotate_key"),
    retire: this.#method("retire_key"),
    disable: this.#method("disable_key"),
    enable: this.#method("enable_key"),
    cancelArchive: this.#method("cancel_archive"),
    active: this.#method("get_active_key"),
    get: this.#method("get_key"),
    listPage: this.#method("list_keys"),
    list: async (fields: Fields<"list_keys"> = {}, options: CallOptions = {}): Promise<Data<"list_keys">["keys"]> =>
      collected(this.pages("list_keys", fields, options), (page) => page.keys),
    publicKey: this.#method("get_public_key"),
    jwks: this.#method("list_jwks"),
    usage: this.#method("get_key_usage"),
    listUsage: async (
      fields: Fields<"list_key_usage"> = {},
      options: CallOptions = {},
    ): Promise<Data<"list_key_usage">["usage"]> =>
      collected(this.pages("list_key_usage", fields, options), (page) => page.usage),
  };

  /** Keyrings. The keyring `default` always exists. */
  readonly keyrings = {
    create: this.#method("create_keyring"),
    update: this.#method("update_keyring"),
    get: this.#method("get_keyring"),
    listPage: this.#method("list_keyrings"),
    list: async (
      fields: Fields<"list_keyrings"> = {},
      options: CallOptions = {},
    ): Promise<Data<"list_keyrings">["keyrings"]> =>
      collected(this.pages("list_keyrings", fields, options), (page) => page.keyrings),
    delete: this.#method("delete_keyring"),
    restore: this.#method("restore_keyring"),
  };

  /** API keys. */
  readonly apiKeys = {
    create: this.#method("create_api_key"),
    own: this.#method("get_own_api_key"),
    list: this.#method("list_api_keys"),
    rotate: this.#method("rotate_api_key"),
    revoke: this.#method("revoke_api_key"),
  };

  /** Tenants. */
  readonly tenants = {
    create: this.#method("create_tenant"),
    get: this.#method("get_tenant"),
    listPage: this.#method("list_tenants"),
    list: async (
      fields: Fields<"list_tenants"> = {},
      options: CallOptions = {},
    ): Promise<Data<"list_tenants">["tenants"]> =>
      collected(this.pages("list_tenants", fields, options), (page) => page.tenants),
    update: this.#method("change_tenant"),
    delete: this.#method("delete_tenant"),
    cancelDeletion: this.#method("cancel_tenant_deletion"),
  };

  /** The audit log. */
  readonly audit = {
    recordsPage: this.#method("list_audit_records"),
    /** Yields records, page by page. */
    records: (
      fields: Fields<"list_audit_records"> = {},
      options: CallOptions = {},
    ): AsyncGenerator<Data<"list_audit_records">["records"][number], void> =>
      members(this.pages("list_audit_records", fields, options), (page) => page.records),
    /**
     * Writes the records, as JSON lines for `pqkeep audit verify`, closes the stream, and returns the number of
     * records. It ends when nothing arrives for 15 seconds. What is written is complete only if it succeeds.
     */
    export: (target: WritableStream<Uint8Array>, fields?: Fields<"export_audit_log">, options?: CallOptions) =>
      this.#exported(target, fields, options),
    proof: this.#method("prove_audit_record"),
    counts: this.#method("count_audit_records"),
    checkpoints: this.#method("list_audit_checkpoints"),
    note: this.#method("get_audit_note"),
    signCheckpoint: this.#method("sign_audit_checkpoint"),
    consistency: this.#method("prove_audit_consistency"),
    keys: this.#method("list_audit_keys"),
    tlogProof: this.#method("get_audit_tlog_proof"),
    witnesses: this.#method("list_audit_witnesses"),
  };

  /** Plans to move data from old keys to a new one. */
  readonly campaigns = {
    put: this.#method("put_campaign"),
    list: this.#method("list_campaigns"),
    get: this.#method("get_campaign"),
    close: this.#method("close_campaign"),
    addScan: this.#method("add_campaign_scan"),
  };

  /** The rules that end algorithms. */
  readonly rules = {
    list: this.#method("list_rules"),
    get: this.#method("get_rule"),
    preview: this.#method("preview_rules"),
    profiles: this.#method("list_rule_profiles"),
  };

  readonly notices = { list: this.#method("list_notices") };
  readonly webhooks = {
    list: this.#method("list_webhooks"),
    deliveries: this.#method("list_webhook_deliveries"),
    test: this.#method("test_webhook"),
    resend: this.#method("resend_webhook_delivery"),
  };
  readonly usage = { get: this.#method("get_usage") };
  readonly installation = { get: this.#method("get_installation") };
  readonly operators = {
    list: this.#method("list_operators"),
    sessions: this.#method("list_operator_sessions"),
    endSession: this.#method("end_operator_session"),
  };
  readonly status = { health: this.#method("check_health") };
}

/** A public key: bytes, or PEM text. */
type PublicKey = Uint8Array | string;

function sentKey<T extends { public_key: PublicKey }>(fields: T): T & { public_key: string } {
  const { public_key: key } = fields;
  return { ...fields, public_key: typeof key === "string" ? key : toBase64(key) };
}

async function* members<P, M>(
  pages: AsyncIterable<P>,
  membersOf: (page: P) => readonly M[],
): AsyncGenerator<M, void> {
  for await (const page of pages) yield* membersOf(page);
}

async function collected<P, M>(pages: AsyncIterable<P>, membersOf: (page: P) => readonly M[]): Promise<M[]> {
  const all: M[] = [];
  for await (const member of members(pages, membersOf)) all.push(member);
  return all;
}
