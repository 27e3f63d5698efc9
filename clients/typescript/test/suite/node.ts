// The behaviour suite in Node and Deno: its argument is the file with the cases.
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { decryptFile, encryptFile, tokenFile } from "../../src/node.js";
import { run, type Case, type Files } from "./cases.js";

let left: readonly string[] = [];

const files: Files = {
  token: tokenFile,
  left: () => left,
  call: async (local, method, content) => {
    const folder = mkdtempSync(join(tmpdir(), "pqkeep-"));
    const [source, target] = [join(folder, "source"), join(folder, "target")];
    try {
      writeFileSync(source, content);
      await (method === "encrypt_file" ? encryptFile : decryptFile)(local, source, target);
      const mode = (statSync(target).mode & 0o777).toString(8);
      return { content: Uint8Array.from(readFileSync(target)), mode, left: others(folder) };
    } finally {
      left = others(folder);
      rmSync(folder, { recursive: true });
    }
  },
};

function others(folder: string): string[] {
  return readdirSync(folder).filter((name) => name !== "source" && name !== "target");
}

const { cases } = JSON.parse(readFileSync(process.argv[2] as string, "utf8")) as { cases: Case[] };
await run(cases, (line) => void process.stdout.write(`${line}\n`), files);
