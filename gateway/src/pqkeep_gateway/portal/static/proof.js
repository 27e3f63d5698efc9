// Verifies a record's inclusion proof (RFC 9162, section 2.1.3.2) with the browser's SHA-256.
import { fromBase64, toBase64 } from "./bytes.js";
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { t } from "./languages.js";
import { many } from "./spans.js";

const SIDES = { left: t`left`, right: t`right` };

const section = document.querySelector("[data-proof]");
const problem = section.querySelector(".form-error");

async function sha256(...parts) {
  const whole = new Uint8Array(await new Blob(parts).arrayBuffer());
  return new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
}

/** A record as canonical JSON (RFC 8785). Its values are texts, integers and null. */
export function textOf(record) {
  const members = Object.keys(record)
    .sort()
    .map((name) => `${JSON.stringify(name)}:${JSON.stringify(record[name])}`);
  return `{${members.join(",")}}`;
}

/** The root computed from a path, with the steps; null if the path does not fit a tree of this size. */
export async function provenRoot(leaf, index, size, path) {
  if (!(index >= 0 && index < size)) return null;
  let [node, last, root, steps] = [index, size - 1, leaf, []];
  for (const neighbour of path) {
    if (last === 0) return null;
    const isRight = node % 2 === 1 || node === last;
    root = isRight
      ? await sha256(Uint8Array.of(1), neighbour, root)
      : await sha256(Uint8Array.of(1), root, neighbour);
    steps.push({ side: isRight ? "left" : "right", neighbour, root });
    if (isRight && node % 2 === 0) {
      while (node % 2 === 0 && node !== 0) [node, last] = [Math.floor(node / 2), Math.floor(last / 2)];
    }
    [node, last] = [Math.floor(node / 2), Math.floor(last / 2)];
  }
  return last === 0 ? { root, steps } : null;
}

/** Whether the page shows exactly this record. */
function isShown(record) {
  const facts = [...document.querySelectorAll("[data-fact]")];
  return (
    facts.length === Object.keys(record).length &&
    facts.every((fact) => JSON.stringify(JSON.parse(fact.dataset.value)) === JSON.stringify(record[fact.dataset.fact]))
  );
}

function say(text, kind) {
  const badge = document.createElement("span");
  badge.className = `badge ${kind}`;
  badge.textContent = text;
  section.querySelector("[data-verdict]").replaceChildren(badge);
}

async function check() {
  problem.textContent = "";
  if (!crypto.subtle) {
    problem.textContent = t`Browsers compute hashes only on https pages. Use pqkeep audit verify instead.`;
    return;
  }
  const { log, shard } = section.dataset;
  const named = Object.entries({ log, shard }).filter(([, value]) => value);
  const query = named.length ? `?${new URLSearchParams(named)}` : "";
  const proof = await call("GET", `/api/v1/audit/records/${section.dataset.proof}/proof${query}`);
  const leaf = await sha256(Uint8Array.of(0), new TextEncoder().encode(textOf(proof.record)));
  const proven = await provenRoot(leaf, proof.leaf_index, proof.size, proof.path.map(fromBase64));
  const holds =
    proven !== null &&
    toBase64(proven.root) === proof.checkpoint.root &&
    proof.size === proof.checkpoint.size &&
    proof.leaf_index === proof.record.id - 1 &&
    isShown(proof.record);
  say(holds ? t`verified: it is in the log` : t`not in the log as shown here`, holds ? "ok" : "danger");
  section.querySelector("[data-checkpoint]").textContent =
    t`${many(proof.checkpoint.size, "record")} at ${proof.checkpoint.at}, signed with ${proof.checkpoint.algorithm}`;
  section.querySelector("[data-root-hash]").textContent = proof.checkpoint.root;
  section.querySelector("[data-computed]").textContent = proven ? toBase64(proven.root) : t`the path does not fit the tree`;
  const lines = [t`the record: ${toBase64(leaf)}`, ...(proven?.steps ?? []).map(
    (step) => t`with its ${SIDES[step.side]} neighbour ${toBase64(step.neighbour)}: ${toBase64(step.root)}`,
  )];
  section.querySelector("[data-path]").replaceChildren(
    ...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })),
  );
  section.querySelector("[data-steps]").hidden = false;
}

/** Checks the record, or shows why it cannot. A checkpoint covers a new record within a second. */
async function begin() {
  try {
    await check();
  } catch (error) {
    if (error instanceof Cancelled) return;
    problem.textContent = error.status === 404 ? t`No checkpoint covers this record yet. Check again in a second.` : error.message;
  }
}

section.querySelector("[data-check]").addEventListener("click", begin);
begin();
