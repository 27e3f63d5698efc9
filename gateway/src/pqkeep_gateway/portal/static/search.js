// The search: Ctrl+K, ⌘K or / open it. It shows pages and actions at once, and what the API finds a moment later.
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { t } from "./languages.js";
import { many } from "./spans.js";

const WAIT = 150; // milliseconds after the last key
const MOST_PLACES = 20;
const dialog = document.getElementById("search");
const input = dialog.querySelector("input");
const list = dialog.querySelector("[role=listbox]");
const status = dialog.querySelector("[role=status]");
const addresses = JSON.parse(dialog.dataset.addresses);
const words = JSON.parse(dialog.dataset.words);
const places = [...dialog.querySelector("template").content.querySelectorAll("a")].map((link) => ({
  name: link.textContent,
  about: link.dataset.kind,
  path: link.getAttribute("href"),
}));

let timer;
let newest = 0; // the number of the last search: an older one shows nothing
let options = [];
let chosen = 0;

function open() {
  dialog.showModal();
  input.select();
  update();
}

/** The pages and actions with every typed word, those first that begin with the text. */
function placesFor(text) {
  const parts = text.toLowerCase().split(/\s+/).filter(Boolean);
  return places
    .filter(({ name }) => parts.every((part) => name.toLowerCase().includes(part)))
    .sort((a, b) => startsWith(b, text) - startsWith(a, text))
    .slice(0, MOST_PLACES);
}

const startsWith = ({ name }, text) => Number(name.toLowerCase().startsWith(text.toLowerCase()));

function update() {
  const text = input.value.trim();
  clearTimeout(timer);
  newest += 1;
  show(placesFor(text), []);
  if (!text) return say(t`Arrow keys choose, Enter opens.`);
  say(t`Searching…`);
  timer = setTimeout(find, WAIT, text, newest);
}

async function find(text, number) {
  try {
    const { results, unavailable } = await call("GET", `/api/v1/search?${new URLSearchParams({ text })}`);
    if (number !== newest) return;
    show(placesFor(text), results.map(found));
    const missing = unavailable.map((kind) => words[kind] ?? kind).join(", ");
    say(missing ? t`Not searched, because a part is unavailable: ${missing}.` : count());
  } catch (error) {
    if (number === newest && !(error instanceof Cancelled)) say(error.message);
  }
}

function count() {
  if (!options.length) return t`Nothing found. Type a part of a name, a whole request id, or a record’s number.`;
  return many(options.length, "result");
}

function found({ kind, id, name, detail }) {
  const path = addresses[kind].replace("{id}", () => encodeURIComponent(id)).replace("{name}", () => encodeURIComponent(name));
  return { name, about: [words[kind] ?? kind, detail].filter(Boolean).join(", "), path };
}

/** Shows the options, with what begins with the text first. The chosen one stays chosen. */
function show(near, far) {
  const before = options[chosen]?.path;
  const text = input.value.trim();
  const first = text ? [...near, ...far].filter((option) => startsWith(option, text)) : near;
  options = [...first, ...[...near, ...far].filter((option) => !first.includes(option))];
  list.replaceChildren(
    ...options.map(({ name, about }, index) => {
      const option = document.createElement("li");
      option.id = `search-option-${index}`;
      option.setAttribute("role", "option");
      const bare = document.createElement("bdi");
      bare.textContent = name;
      const small = document.createElement("span");
      small.className = "small muted";
      small.textContent = about;
      option.append(bare, " ", small);
      return option;
    }),
  );
  input.setAttribute("aria-expanded", String(options.length > 0));
  choose(Math.max(0, moved ? options.findIndex(({ path }) => path === before) : 0));
}

let moved = false; // whether the visitor has chosen with the arrow keys

function choose(index) {
  list.children[chosen]?.setAttribute("aria-selected", "false");
  chosen = index;
  const option = list.children[index];
  for (const other of list.children) other.setAttribute("aria-selected", String(other === option));
  if (option) input.setAttribute("aria-activedescendant", option.id);
  else input.removeAttribute("aria-activedescendant");
  option?.scrollIntoView({ block: "nearest" });
}

function say(text) {
  status.textContent = text;
}

function go(option) {
  dialog.close();
  location.assign(option.path);
}

input.addEventListener("input", () => {
  moved = false;
  update();
});
input.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !options.length) return;
  event.preventDefault();
  moved = true;
  choose((chosen + step + options.length) % options.length);
});
input.form.addEventListener("submit", (event) => {
  if (!options[chosen]) return; // then the page of the search says more
  event.preventDefault();
  go(options[chosen]);
});
list.addEventListener("click", (event) => {
  const option = event.target.closest("[role=option]");
  if (option) go(options[[...list.children].indexOf(option)]);
});
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-search]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  open();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
  const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
  const isChord = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
  if (!isChord && (event.key !== "/" || isTyping || hasModifier)) return;
  if (isChord) event.preventDefault();
  if (document.querySelector("dialog[open]")) return; // what is typed there must stay
  event.preventDefault();
  open();
});
