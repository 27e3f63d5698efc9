/** The types of operations: the fields of a request, and the data of its response. */
import type { OPERATIONS } from "./generated/operations.js";
import type { components, operations } from "./generated/types.js";

/** The API's schemas, by name. */
export type Schemas = components["schemas"];

/** The names of operations, as in the API's description. */
export type Operation = keyof operations & keyof typeof OPERATIONS;

type Flat<T> = { [K in keyof T]: T[K] };
type Given<T> = [T] extends [never] ? unknown : T;
type Part<T, Name extends string> = T extends { [K in Name]: infer Value }
  ? Given<Value>
  : T extends { [K in Name]?: infer Value }
    ? Given<Exclude<Value, undefined>>
    : unknown;
type Body<T> = T extends { requestBody: { content: { "application/json": infer Value } } }
  ? Value
  : T extends { requestBody?: { content: { "application/json": infer Value } } }
    ? Value
    : unknown;

/** The fields of a request: of the path, the query and the body, together. */
export type Fields<O extends Operation> = Flat<
  Part<operations[O]["parameters"], "path"> & Part<operations[O]["parameters"], "query"> & Body<operations[O]>
>;

type Content<O extends Operation> = operations[O]["responses"] extends infer R
  ? R[keyof R] extends { content: infer C }
    ? C[keyof C]
    : never
  : never;

/** The data of a response. Binary fields are Uint8Arrays, and times are texts (ISO 8601, UTC). */
export type Data<O extends Operation> = Content<O> extends { data: infer D; request_id: string } ? D : Content<O>;

/** The arguments of a call: its fields, if it has any, and its options. */
export type Arguments<O extends Operation, Options> =
  Record<never, never> extends Fields<O>
    ? [fields?: Fields<O>, options?: Options]
    : [fields: Fields<O>, options?: Options];

/** The operations with lists that have pages: the response has the next page's `after` in `next`. */
export type Listing = {
  [O in Operation]: "after" extends keyof Fields<O> ? ("next" extends keyof Data<O> ? O : never) : never;
}[Operation];
