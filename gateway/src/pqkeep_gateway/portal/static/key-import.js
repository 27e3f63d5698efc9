// Key import: the import key as a file, the command, the remaining time, and the result from the audit log.
import { download } from "./bytes.js";
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { t } from "./languages.js";
import { span } from "./spans.js";
import { toast } from "./toasts.js";

const POLL_MILLISECONDS = 3000;
const run = document.querySelector("[data-import]");
const became = document.querySelector("[data-became]");
const records = "/api/v1/audit/records?order=desc&limit=1";
let current = null; // the visible import key
let newest; // the id of the newest record that is no news for the next import key
const before = call("GET", records); // before the first import key, so that no import is missed
before.catch(() => {}); // watch() says it

document.addEventListener("responded", async ({ detail }) => {
  if (!detail.import_key_id) return;
  const shown = { key: detail, made: performance.now() };
  current = shown;
  const { keyring } = run.dataset;
  const where = keyring === "default" ? "" : ` --keyring ${keyring}`;
  const file = run.dataset.public.split(" ").includes(detail.algorithm) ? "public-key.pem" : "private-key.pem";
  run.querySelector("[data-command] code").textContent =
    `pqkeep keys import ${detail.algorithm} ${file}${where} --import-key import-key.json`;
  run.hidden = became.hidden = false;
  became.querySelector("[data-imported]").hidden = true;
  say("", t`waiting`, t`This page reads the audit log every few seconds, and shows here when the key is imported.`);
  tick();
  run.querySelector("h2").focus();
  await watch(shown);
});

run?.querySelector("[data-save]").addEventListener("click", () => {
  download("import-key.json", new TextEncoder().encode(`${JSON.stringify(current.key, null, 2)}\n`));
});

/** The remaining seconds. They count from the response, because the browser's clock may be wrong. */
function left(shown) {
  return Math.max(0, Number(run.dataset.import) - Math.floor((performance.now() - shown.made) / 1000));
}

function tick() {
  const seconds = left(current);
  run.querySelector("[role=timer]").textContent = seconds ? t`${span(seconds)} left` : t`ended`;
  if (seconds) setTimeout(tick, 500);
}

/** Polls for import records that are newer than the import key. */
async function watch(shown) {
  try {
    newest ??= (await before).records[0]?.id ?? 0;
    const path = `${records}&after=${newest}&${new URLSearchParams({
      operation: "import-key",
      algorithm: shown.key.algorithm,
      keyring: run.dataset.keyring,
    })}`;
    while (current === shown) {
      const [record] = (await call("GET", path)).records;
      if (record) {
        newest = record.id;
        if (tell(record)) return;
      }
      if (!left(shown)) return say("", t`ended`, t`The import key expired without an import. Make another one.`);
      await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
    }
  } catch (error) {
    if (!(error instanceof Cancelled)) toast(error.message);
  }
}

/** Shows a record's result. Returns whether it is final. */
function tell({ outcome, recorded_at: at, key_version: version, algorithm }) {
  const when = `${at.slice(0, 19).replace("T", " ")} UTC`;
  if (outcome === "success") {
    say("ok", t`imported`, t`Imported at ${when}: ${algorithm} version ${version} is active, and marked as imported.`);
    became.querySelector("[data-imported]").hidden = false;
    return true;
  }
  const words = became.querySelector("[data-words]").content.querySelector(`[data-outcome="${CSS.escape(outcome)}"]`);
  const isUsedUp = outcome === "decryption-failed";
  const rest = isUsedUp
    ? t`The import key is used up. Make another one, and check that the file is a private key of this algorithm.`
    : t`The import key can still be used.`;
  say("warn", t`refused`, t`An import was refused at ${when}: ${words?.textContent ?? outcome}. ${rest}`);
  return isUsedUp;
}

function say(kind, verdict, text) {
  const badge = document.createElement("span");
  badge.className = `badge ${kind}`;
  badge.textContent = verdict;
  became.querySelector("[data-verdict]").replaceChildren(badge);
  became.querySelector("[data-says]").textContent = text;
}
