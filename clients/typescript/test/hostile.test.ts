// What a hostile or broken service can do to a client.
import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, PqkeepError, type ClientOptions, type ErrorKind } from "../src/index.js";

const API_KEY = "pqk_an_api_key_of_a_test";

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

async function serving(handler: Handler, use: (url: string) => Promise<void>): Promise<void> {
  const server = createServer((request, response) => {
    request.resume();
    response.on("error", () => undefined);
    handler(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await use(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

function client(url: string, options: Partial<ClientOptions> = {}): Client {
  return new Client({ url, apiKey: API_KEY, retries: 0, ...options });
}

function json(body: string, status = 200, headers: Record<string, string> = {}): Handler {
  return (_, response) => void response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(body);
}

function of(kind: ErrorKind): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof PqkeepError, inspect(error));
    assert.equal(error.kind, kind, error.message);
    assert.ok(!inspect(error).includes(API_KEY));
    return true;
  };
}

test("a redirect takes the API key nowhere", async () => {
  let reached = 0;
  await serving(
    () => (reached += 1),
    async (elsewhere) => {
      for (const status of [301, 302, 303, 307, 308]) {
        const redirect: Handler = (_, response) => void response.writeHead(status, { Location: elsewhere }).end();
        await serving(redirect, (url) => assert.rejects(client(url).keys.list(), of("malformed-response")));
      }
    },
  );
  assert.equal(reached, 0);
});

test("an endless response ends at 64 MiB", async () => {
  const endless: Handler = (_, response) => {
    response.writeHead(200, { "Content-Type": "application/json" });
    const more = (): void => {
      while (!response.destroyed && response.write(Buffer.alloc(1 << 20, " ")));
    };
    response.on("drain", more);
    more();
  };
  await serving(endless, (url) => assert.rejects(client(url).keys.list(), of("malformed-response")));
});

test("a response that trickles ends with the deadline, and an abort ends at once", async () => {
  const trickle: Handler = (_, response) => {
    response.writeHead(200);
    const timer = setInterval(() => response.write(" "), 20);
    response.on("close", () => clearInterval(timer));
  };
  await serving(trickle, async (url) => {
    await assert.rejects(client(url, { timeout: 200 }).keys.list(), of("deadline-exceeded"));
    const reason = new Error("the caller's own");
    const controller = new AbortController();
    setTimeout(() => controller.abort(reason), 50);
    await assert.rejects(client(url).keys.list({}, { signal: controller.signal }), reason);
  });
});

test("responses that are not pqkeep's are refused", async () => {
  const bodies = ["", "null", "[]", "<html>", '{"data":null}', '{"data":{}}', '{"data":{"keys":{},"total":1}}', "[".repeat(1e6)];
  for (const body of bodies) {
    await serving(json(body), (url) => assert.rejects(client(url).keys.list(), of("malformed-response")));
  }
});

test("names of Object.prototype are neither read nor changed", async () => {
  const body = '{"data":{"__proto__":{"polluted":1},"keys":[],"total":0,"constructor":{"prototype":{"polluted":1}}}}';
  await serving(json(body), async (url) => {
    const page = await client(url).keys.listPage();
    assert.deepEqual(page.keys, []);
    assert.equal(Object.getPrototypeOf(page), Object.prototype);
    assert.equal(({} as Record<string, unknown>)["polluted"], undefined);
  });
  const inherited = '{"data":{"__proto__":{"keys":[],"total":0}}}';
  await serving(json(inherited), (url) => assert.rejects(client(url).keys.list(), of("malformed-response")));
});

test("a list with repeated pages ends", async () => {
  const body = '{"data":{"keys":[],"total":0,"next":"again"}}';
  await serving(json(body), (url) => assert.rejects(client(url).keys.list(), of("malformed-response")));
});

test("a name cannot leave its place in the path", async () => {
  const paths: string[] = [];
  const record: Handler = (request, response) => {
    paths.push(request.url ?? "");
    json("{}", 404)(request, response);
  };
  await serving(record, async (url) => {
    for (const name of ["", ".", ".."]) {
      await assert.rejects(client(url).keyrings.get({ name }), of("invalid-request"));
    }
    for (const name of ["a/../../b", "%2e%2e", "a?b#c", "\\..\\"]) {
      await assert.rejects(client(url).keyrings.get({ name }), of("malformed-response"));
    }
  });
  assert.equal(paths.length, 4);
  assert.ok(paths.every((path) => path.startsWith("/api/v1/kms/keyrings/") && path.split("/").length === 6), paths.join());
});

test("a client shows no API key", () => {
  const made = client("https://pqkeep.example");
  assert.ok(!inspect(made, { depth: 9, showHidden: true }).includes(API_KEY));
  assert.ok(!JSON.stringify(made).includes(API_KEY));
});
