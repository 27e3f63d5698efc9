// Writes src/generated from the description of the API: make typescript runs it.
//
// types.ts has the types, for the compiler. operations.ts has the same facts for the running program:
// the paths of the operations, and the shapes of their responses.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import openapi, { astToString } from "openapi-typescript";
import ts from "typescript";

const REFERENCE = "#/components/schemas/";
const METHODS = ["get", "post", "put", "patch", "delete"];
const FORMS = {
  "application/json": "envelope",
  "application/jwk-set+json": "json",
  "text/plain; charset=utf-8": "text",
  "application/jsonl": "lines",
};

const [file, folder = "src/generated"] = process.argv.slice(2);
const source = readFileSync(file);
const description = JSON.parse(source);
const digest = createHash("sha256").update(source).digest("hex");
const head = `// Generated from the API's description: make typescript writes it.\n// SHA-256 of the description: ${digest}\n\n`;

const BYTES = ts.factory.createTypeReferenceNode("Uint8Array");
const types = await openapi(description, {
  alphabetize: true,
  transform: (schema) => (schema.contentEncoding === "base64" ? BYTES : undefined),
});

mkdirSync(folder, { recursive: true });
const used = types.filter((node) => ["components", "operations"].includes(node.name?.text));
writeFileSync(`${folder}/types.ts`, head + astToString(used));
writeFileSync(`${folder}/operations.ts`, head + operations());

function operations() {
  const rows = [];
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const method of METHODS.filter((name) => name in methods)) {
      rows.push(row(method, path, methods[method]));
    }
  }
  rows.sort(([a], [b]) => (a < b ? -1 : 1));
  const shapes = Object.entries(description.components.schemas).map(
    ([name, schema]) => `  ${JSON.stringify(name)}: ${JSON.stringify(shape(schema))},\n`,
  );
  return (
    'import type { Row, Shape } from "../shapes.js";\n\n' +
    "export const OPERATIONS = {\n" +
    rows.map(([id, values]) => `  ${id}: ${JSON.stringify(values)},\n`).join("") +
    "} as const satisfies Record<string, Row>;\n\n" +
    "/** The shapes of the API's schemas, by name. */\n" +
    "export const SHAPES: Readonly<Record<string, Shape>> = {\n" +
    shapes.join("") +
    "};\n"
  );
}

function row(method, path, operation) {
  const { content } = Object.values(operation.responses)[0];
  const [[kind, { schema }]] = Object.entries(content);
  const form = FORMS[kind];
  if (form === undefined) throw new Error(`${operation.operationId}: unknown form ${kind}`);
  const data = form === "envelope" ? schema.properties.data : schema;
  return [
    operation.operationId,
    {
      method: method.toUpperCase(),
      path,
      query: operation.parameters.filter((each) => each.in === "query").map((each) => each.name),
      hasBody: operation.requestBody !== undefined,
      isIdempotent: operation["x-idempotent"],
      form,
      data: form === "text" || form === "lines" ? "string" : shape(data),
    },
  ];
}

// Returns the shape of a schema: see src/shapes.ts.
function shape(schema) {
  if (schema.$ref !== undefined) return { ref: schema.$ref.slice(REFERENCE.length) };
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices !== undefined) {
    const real = choices.filter((choice) => choice.type !== "null");
    const shapes = real.map(shape);
    const one = shapes.length === 1 ? shapes[0] : { any: shapes };
    return real.length < choices.length ? { nullable: one } : one;
  }
  if (schema.contentEncoding === "base64") return "bytes";
  if (schema.enum !== undefined) return typeof schema.enum[0];
  if (schema.const !== undefined) return typeof schema.const;
  switch (schema.type) {
    case "string":
    case "integer":
    case "number":
    case "boolean":
      return schema.type;
    case "array":
      return { list: shape(schema.items ?? {}) };
    case "object":
      return object(schema);
    case undefined:
      return "unknown";
    default:
      if (Array.isArray(schema.type)) return "unknown";
      throw new Error(`unknown type ${schema.type}`);
  }
}

function object(schema) {
  if (schema.properties === undefined) {
    const values = schema.additionalProperties;
    return { map: values === undefined || values === true ? "unknown" : shape(values) };
  }
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties);
  const of = (isRequired) =>
    Object.fromEntries(
      fields.filter(([name]) => required.has(name) === isRequired).map(([name, value]) => [name, shape(value)]),
    );
  return { required: of(true), optional: of(false) };
}
