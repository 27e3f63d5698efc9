// Suggests filters and values while a person types: <input role="combobox" data-filters="JSON">.
// A field of names has one filter, without a name: each token is a value.
import { send } from "./http.js";

const MOST = 12;
const WAIT = 200; // milliseconds between a key and a request
const known = new Map(); // values by address

for (const input of document.querySelectorAll("[data-filters]")) suggest(input);

function suggest(input) {
  const list = document.getElementById(input.getAttribute("aria-controls"));
  const filters = JSON.parse(input.dataset.filters);
  let active = -1;
  let timer;
  let turn = 0;

  input.addEventListener("input", refresh);
  input.addEventListener("focus", refresh);
  input.addEventListener("click", refresh);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const isOpen = !list.hidden;
    if (event.key === "Escape" && isOpen) close();
    else if (event.key === "ArrowDown") isOpen ? mark(active + 1) : refresh();
    else if (event.key === "ArrowUp" && isOpen) mark(active - 1);
    else if (event.key === "Enter" && isOpen && active >= 0) take(list.children[active]);
    else return;
    event.preventDefault();
  });
  list.addEventListener("pointerdown", (event) => {
    const option = event.target.closest("[role=option]");
    event.preventDefault(); // the field keeps the focus
    if (option) take(option);
  });

  /** Returns the token at the cursor: its start, its filter and its beginning of a value. */
  function token() {
    const before = input.value.slice(0, input.selectionStart);
    const start = before.search(/(?:[^\s"]|"[^"]*"?)*$/);
    const text = before.slice(start);
    const [only] = filters;
    if (only?.name === "") return { start, minus: "", typed: text, filter: only, hasColon: true };
    const minus = text.startsWith("-") ? "-" : "";
    const colon = text.indexOf(":");
    const name = colon < 0 ? "" : text.slice(minus.length, colon).toLowerCase();
    const typed = text.slice(colon < 0 ? minus.length : colon + 1).replaceAll('"', "");
    return { start, minus, typed, filter: filters.find((row) => row.name === name), hasColon: colon >= 0 };
  }

  async function refresh() {
    clearTimeout(timer);
    const mine = ++turn;
    const at = token();
    if (!at.hasColon) return show(at, filters.filter(({ name }) => name.startsWith(at.typed.toLowerCase()))
      .map(({ name, about }) => [`${at.minus}${name}:`, about]));
    if (!at.filter) return close();
    const begins = (value) => value.toLowerCase().startsWith(at.typed.toLowerCase());
    const options = (values) => values.filter((value) => begins(value) && value !== at.typed).map((value) => [
      `${at.minus}${at.filter.name}${at.filter.name && ":"}${/\s/.test(value) ? `"${value}"` : value}`, ""]);
    show(at, options(at.filter.values ?? []));
    if (!at.filter.source) return;
    const path = at.filter.source + encodeURIComponent(at.typed);
    timer = setTimeout(async () => {
      const found = known.get(path) ?? await values(path, at.filter.pick);
      known.set(path, found);
      if (mine === turn) show(at, options([...(at.filter.values ?? []), ...found]));
    }, known.has(path) ? 0 : WAIT);
  }

  function show(at, options) {
    list.replaceChildren(...options.slice(0, MOST).map(([value, about], number) => {
      const option = document.createElement("li");
      option.id = `${list.id}-${number}`;
      option.role = "option";
      option.dataset.value = value;
      option.dataset.start = at.start;
      const code = document.createElement("code");
      code.textContent = value;
      option.append(code);
      if (about) option.append(` ${about}`);
      return option;
    }));
    list.hidden = !list.children.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(-1);
  }

  function mark(number) {
    const options = [...list.children];
    active = options.length && number >= -1 ? Math.min(number, options.length - 1) : -1;
    for (const [place, option] of options.entries()) option.setAttribute("aria-selected", String(place === active));
    if (active < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", options[active].id);
    options[active].scrollIntoView({ block: "nearest" });
  }

  /** Puts an option in the place of the token at the cursor. */
  function take(option) {
    const { value, start } = option.dataset;
    const rest = input.value.slice(input.selectionStart).replace(/^\S*\s*/, "");
    const end = value.endsWith(":") ? "" : " ";
    const before = input.value.slice(0, Number(start)) + value + end;
    input.value = before + rest;
    input.setSelectionRange(before.length, before.length);
    refresh();
  }

  function close() {
    clearTimeout(timer);
    turn += 1;
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    mark(-1);
  }
}

/** Returns the values of a response, or nothing: suggestions are a help only. */
async function values(path, pick) {
  const [rows, name] = pick.split(".");
  try {
    const data = await send("GET", path);
    return [...new Set(data[rows].map((row) => row[name]).filter(Boolean))];
  } catch {
    return [];
  }
}
