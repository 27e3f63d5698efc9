// Bulk actions: rows are chosen by checkboxes, and an action is one request of the API for each. What was done is
// kept in the tab until it is read: a reload goes on where it was, and a repeated request has no second effect.
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { bodyOf, clearProblems, isComplete } from "./fields.js";
import { t } from "./languages.js";

const STORE = "pqkeep-bulk";
const STATES = { waiting: t`waiting`, done: t`done`, failed: t`failed` };
const bar = document.querySelector("[data-bulk]");
const dialog = document.getElementById("bulk");
const form = dialog.querySelector("form");
const table = document.querySelector("table.listing");
const progress = dialog.querySelector("progress");
const results = dialog.querySelector("[data-bulk-results]");
const said = dialog.querySelector("[role=status]");
const labels = form.querySelector("[name=labels]"); // only where an action sets labels
const again = dialog.querySelector("[data-bulk-stop]");
const boxes = [];
let action; // the chosen one
let job = stored();
let isStopped = false;

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE));
  } catch {
    return null;
  }
}

function keep() {
  if (job) sessionStorage.setItem(STORE, JSON.stringify(job));
  else sessionStorage.removeItem(STORE);
}

/** The fields of a row: its own, or those of the address of its page, the parts of the path and the query. */
function fieldsOf(row) {
  if (row.dataset.row) return JSON.parse(row.dataset.row);
  const url = new URL(row.cells[0].querySelector("a").href);
  const parts = url.pathname.split("/").slice(3).map(decodeURIComponent);
  const names = bar.dataset.fields.split(" ");
  return { ...Object.fromEntries(names.map((name, index) => [name, parts[index]])), ...Object.fromEntries(url.searchParams) };
}

/** Adds a checkbox to a cell. */
function addBox(cell, label, onChange) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.setAttribute("aria-label", label);
  box.addEventListener("change", onChange);
  const around = document.createElement("label"); // a larger target for a finger
  around.className = "pick";
  around.append(box);
  cell.prepend(around);
  return box;
}

function count() {
  const chosen = boxes.filter(({ box }) => box.checked).length;
  bar.hidden = !chosen;
  bar.querySelector("[role=status]").textContent = t`${chosen} selected`;
  all.checked = chosen === boxes.length;
  all.indeterminate = chosen > 0 && !all.checked;
}

for (const row of table.tBodies[0].rows) {
  if (!row.dataset.row && !row.cells[0].querySelector("a")) continue;
  const name = row.cells[0].innerText.trim().replace(/\s+/g, " ");
  boxes.push({ box: addBox(row.cells[0], t`Select ${name}`, count), name, fields: fieldsOf(row) });
}
const all = addBox(table.tHead.rows[0].cells[0], t`Select all rows of this page`, () => {
  for (const { box } of boxes) box.checked = all.checked;
  count();
});

function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The requests for the chosen rows. Rows that need the same one share it, such as two versions of a rotated key. */
function requests() {
  const made = new Map();
  for (const { box, name, fields: own } of boxes) {
    if (!box.checked) continue;
    const fields = { ...action.defaults, ...own };
    const path = action.path.replace(/\{(\w+)\}/g, (_, field) => encodeURIComponent(fields[field]));
    const sent = (action.body ?? []).filter((field) => field in own).map((field) => [field, field === "key_version" ? Number(own[field]) : own[field]]);
    const body = action.body ? Object.fromEntries(sent) : undefined;
    const place = path + JSON.stringify(body);
    if (!made.has(place)) made.set(place, { name, path, body, key: random(), state: "waiting" });
  }
  return [...made.values()];
}

function open() {
  dialog.querySelector("h2 bdi").textContent = job.title;
  dialog.querySelector("[data-bulk-about]").textContent = job.about;
  isStopped = false;
  if (labels) {
    labels.closest(".field").hidden = !job.setsLabels;
    labels.required = Boolean(job.setsLabels);
    labels.value = job.labels ?? "";
    clearProblems(form);
  }
  show();
  dialog.showModal();
}

/** The body that sets and removes labels of a keyring. The others stay, also those that another person sets now. */
function labelled() {
  const changes = Object.entries(bodyOf(form).labels).map(([name, value]) => [name, value || null]);
  return { label_changes: Object.fromEntries(changes) };
}

/** Shows the progress, and a line for each row. */
function show() {
  const done = job.items.filter(({ state }) => state !== "waiting").length;
  const failed = job.items.filter(({ state }) => state === "failed").length;
  progress.max = job.items.length;
  progress.value = done;
  said.textContent = t`${done} of ${job.items.length} done` + (failed ? t`, ${failed} failed` : "");
  results.replaceChildren(
    ...job.items.map(({ name, state, message }) => {
      const line = document.createElement("li");
      const bare = document.createElement("bdi");
      bare.textContent = name;
      const badge = document.createElement("span");
      badge.className = `badge ${{ done: "ok", failed: "danger" }[state] ?? ""}`;
      badge.textContent = STATES[state];
      line.append(bare, badge);
      if (message) line.append(Object.assign(document.createElement("span"), { className: "small", textContent: message }));
      return line;
    }),
  );
  const isOver = done === job.items.length;
  form.hidden = isOver || job.isRunning;
  form.querySelector("button:not([type=button])").textContent = done ? t`Continue` : job.button;
  again.textContent = job.isRunning && !isOver ? t`Stop` : t`Close`;
}

async function run() {
  job.isRunning = true;
  for (const item of job.items) {
    if (item.state !== "waiting") continue;
    keep();
    show();
    if (isStopped) break;
    try {
      const body = job.setsLabels ? labelled() : item.body;
      await call(job.method, item.path, body, { idempotencyKey: job.isIdempotent ? item.key : "" });
      item.state = "done";
    } catch (error) {
      if (error instanceof Cancelled) break;
      if (error.status === undefined) throw error;
      if (error.status === 0 || error.status === 429 || error.status >= 500) {
        item.message = error.message; // it waits: Continue sends it again
        break;
      }
      item.state = "failed";
      item.message = error.message;
    }
    if (item.state === "done") delete item.message;
  }
  job.isRunning = false;
  keep();
  show();
}

bar.addEventListener("click", (event) => {
  const button = event.target.closest("[data-bulk-action]");
  if (event.target.closest("[data-bulk-clear]")) {
    for (const { box } of boxes) box.checked = false;
    count();
  }
  if (!button) return;
  action = JSON.parse(button.dataset.bulkAction);
  job = { ...action, page: location.pathname, items: requests(), isRunning: false };
  job.title = `${action.button}: ${job.items.length}`;
  open();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (labels) {
    clearProblems(form);
    if (!isComplete(form)) return;
    job.labels = labels.value;
  }
  isStopped = false;
  run();
});
again.addEventListener("click", () => {
  if (job.isRunning) isStopped = true;
  else dialog.close();
});
dialog.addEventListener("cancel", (event) => {
  if (job?.isRunning) event.preventDefault();
});
dialog.addEventListener("close", () => {
  const hasBegun = job?.items.some(({ state }) => state !== "waiting");
  job = null;
  keep();
  if (hasBegun) location.reload();
});

if (job?.page === location.pathname) {
  job.isRunning = false;
  open();
} else {
  job = null;
}
