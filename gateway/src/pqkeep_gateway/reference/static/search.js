/* The search: a list of links that narrows while typing. */
const SHOWN = 12;
const search = document.querySelector("#search");
const input = search.querySelector("input");
const results = search.querySelector(".results");
const list = results.querySelector("ul");
const status = results.querySelector("[role=status]");
let index = null;

function plain(text) {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, " ").trim();
}

async function load() {
  const response = await fetch("/docs/search.json");
  const entries = await response.json();
  return entries.map((entry) => ({
    ...entry,
    places: [[8, plain(entry.title)], [3, plain(entry.about)], [2, plain(entry.kind)], [1, plain(entry.words)]],
  }));
}

/* Return how well something fits: each word must be somewhere, and where a word begins is better. */
function fit(each, words, whole) {
  let total = each.places[0][1] === whole ? 100 : 0;
  for (const word of words) {
    const points = each.places.map(([weight, text]) => {
      if (` ${text}`.includes(` ${word}`)) return 2 * weight;
      return text.includes(word) ? weight : 0;
    });
    const best = Math.max(...points);
    if (best === 0) return 0;
    total += best;
  }
  return total;
}

function row(each) {
  const link = document.createElement("a");
  link.href = each.href;
  for (const [name, text] of [["title", each.title], ["kind", each.kind], ["about", each.about]]) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = text;
    link.append(part, " ");
  }
  const item = document.createElement("li");
  item.append(link);
  return item;
}

function close() {
  results.hidden = true;
}

async function find() {
  const whole = plain(input.value);
  if (whole === "") {
    close();
    return;
  }
  try {
    index ??= load();
    await index;
  } catch {
    index = null;
    list.replaceChildren();
    status.textContent = "The search does not respond. Reload the page.";
    results.hidden = false;
    return;
  }
  if (plain(input.value) !== whole) return; // more has been typed meanwhile
  const words = whole.split(" ");
  const found = (await index)
    .map((each) => [fit(each, words, whole), each])
    .filter(([points]) => points > 0)
    .sort(([one], [other]) => other - one)
    .map(([, each]) => each);
  list.replaceChildren(...found.slice(0, SHOWN).map(row));
  const count = found.length === 1 ? "1 result" : `${found.length} results`;
  status.textContent = found.length === 0 ? "Nothing found" : count;
  results.hidden = false;
}

/* Move the focus along the field and the links below it. */
function move(by) {
  const places = [input, ...list.querySelectorAll("a")];
  const at = places.indexOf(document.activeElement) + by;
  places[Math.min(Math.max(at, 0), places.length - 1)].focus();
}

input.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    close();
    input.focus();
  } else if (event.key === "ArrowDown" && results.hidden) {
    find();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Enter" && event.target === input) {
    list.querySelector("a")?.click();
  } else {
    return;
  }
  if (event.key !== "Enter") event.preventDefault();
});
search.addEventListener("click", ({ target }) => { if (target.closest("a")) close(); });
search.addEventListener("focusout", ({ relatedTarget }) => {
  if (!search.contains(relatedTarget)) close();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    input.focus();
    input.select();
  }
});
search.hidden = false;
