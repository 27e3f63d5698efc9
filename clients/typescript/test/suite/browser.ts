// The behaviour suite in a page: the lines are a promise of the window.
import { run, type Case } from "./cases.js";

async function linesOf(): Promise<string[]> {
  const { cases } = (await (await fetch("/cases.json")).json()) as { cases: Case[] };
  const lines: string[] = [];
  await run(cases, (line) => lines.push(line));
  return lines;
}

Object.assign(globalThis, { pqkeepLines: linesOf() });
