/**
 * The shapes of responses, and how they are read.
 *
 * A response is checked against its shape, so that the generated types are true of it. Fields that the
 * shape does not have stay unchanged: a newer service may have more.
 */
import { fromBase64 } from "./encoding.js";
import { SHAPES } from "./generated/operations.js";

/** A JSON value's type. `bytes` is base64 text, and becomes a Uint8Array. */
export type Shape =
  | "string"
  | "integer"
  | "number"
  | "boolean"
  | "bytes"
  | "unknown"
  | { readonly ref: string }
  | { readonly nullable: Shape }
  | { readonly any: readonly Shape[] }
  | { readonly list: Shape }
  | { readonly map: Shape }
  | { readonly required: Fields; readonly optional: Fields };

type Fields = Readonly<Record<string, Shape>>;

/** The facts about an operation. */
export interface Row {
  readonly method: string;
  readonly path: string;
  readonly query: readonly string[];
  readonly hasBody: boolean;
  /** True if the service repeats its response to a request with the same Idempotency-Key. */
  readonly isIdempotent: boolean;
  readonly form: "envelope" | "json" | "text" | "lines";
  readonly data: Shape;
}

/** A value that does not have its shape. `field` is its place. */
export class ShapeError extends Error {
  constructor(readonly field: string) {
    super("a field of the response is missing or malformed");
  }
}

export type JsonObject = { [name: string]: unknown };

/** Returns a JSON value as an object, or undefined. */
export function asObject(value: unknown): JsonObject | undefined {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject ? (value as JsonObject) : undefined;
}

/** Returns an object's own field, or undefined. Fields of Object.prototype do not count. */
export function own(object: JsonObject, name: string): unknown {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** Returns a value of this shape, with bytes in place of base64. Throws ShapeError. */
export function shaped(value: unknown, shape: Shape, field = ""): unknown {
  if (typeof shape === "string") return simple(value, shape, field);
  if ("ref" in shape) {
    const named = SHAPES[shape.ref];
    if (named === undefined) throw new ShapeError(field);
    return shaped(value, named, field);
  }
  if ("nullable" in shape) return value === null ? null : shaped(value, shape.nullable, field);
  if ("any" in shape) return firstOf(value, shape.any, field);
  if ("list" in shape) {
    if (!Array.isArray(value)) throw new ShapeError(field);
    return value.map((member) => shaped(member, shape.list, field));
  }
  const object = asObject(value);
  if (object === undefined) throw new ShapeError(field);
  return "map" in shape
    ? mapped(object, () => shape.map, field)
    : fielded(object, shape.required, shape.optional, field);
}

function fielded(object: JsonObject, required: Fields, optional: Fields, field: string): JsonObject {
  const missing = Object.keys(required).find((name) => !Object.hasOwn(object, name));
  if (missing !== undefined) throw new ShapeError(missing);
  const shapeOf = (name: string): Shape => {
    if (Object.hasOwn(required, name)) return required[name] as Shape;
    if (!Object.hasOwn(optional, name)) return "unknown";
    return { nullable: optional[name] as Shape };
  };
  return mapped(object, shapeOf, field);
}

function mapped(object: JsonObject, shapeOf: (name: string) => Shape, field: string): JsonObject {
  const pairs = Object.entries(object).map(([name, value]) => {
    const shape = shapeOf(name);
    return [name, shape === "unknown" ? value : shaped(value, shape, field === "" ? name : field)];
  });
  return Object.fromEntries(pairs) as JsonObject; // defines "__proto__" like any other name
}

function firstOf(value: unknown, shapes: readonly Shape[], field: string): unknown {
  for (const shape of shapes) {
    try {
      return shaped(value, shape, field);
    } catch (error) {
      if (!(error instanceof ShapeError)) throw error;
    }
  }
  throw new ShapeError(field);
}

function simple(value: unknown, shape: Shape, field: string): unknown {
  switch (shape) {
    case "unknown":
      return value;
    case "bytes": {
      const bytes = typeof value === "string" ? fromBase64(value) : undefined;
      if (bytes === undefined) throw new ShapeError(field);
      return bytes;
    }
    case "integer":
      if (Number.isSafeInteger(value)) return value;
      break;
    default:
      if (typeof value === shape) return value;
  }
  throw new ShapeError(field);
}
