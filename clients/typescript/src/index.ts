/** The TypeScript client of pqkeep, the post-quantum cryptography service. */
export { Client } from "./client.js";
export { PqkeepError, type ErrorKind } from "./errors.js";
export type { Data, Fields, Listing, Operation, Schemas } from "./operations.js";
export type { ClientOptions, Fetch, Workload } from "./settings.js";
export type { CallOptions } from "./transport.js";
export type { RuleWarning } from "./warnings.js";
