// The audit log: local times, a time range from the histogram, and new records as they come.
import { send } from "./http.js";

const SOON = 2000; // milliseconds between two looks
const LATE = 60_000;

/** Adds the visitor's local time to the times of the table. */
function addLocalTimes() {
  if (!new Date().getTimezoneOffset()) return;
  const form = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
  for (const time of document.querySelectorAll("[data-records] time")) {
    if (time.nextSibling) continue;
    const local = document.createElement("span");
    local.className = "small muted line";
    local.textContent = `${form.format(new Date(`${time.textContent.replace(" ", "T")}Z`))} local`;
    time.after(local);
  }
}

/** Returns the address of the page for the time of two bars. */
function range(one, other) {
  const [first, last] = [one, other]
    .map((bar) => new URL(bar.getAttribute("href"), location.href))
    .sort((a, b) => (a.searchParams.get("from") < b.searchParams.get("from") ? -1 : 1));
  first.searchParams.set("to", last.searchParams.get("to"));
  return first;
}

const histogram = document.querySelector("[data-histogram]");
if (histogram) {
  document.querySelector("[data-histogram-help]").hidden = false;
  let begun;
  const bar = (event) => event.target.closest("a");
  histogram.addEventListener("dragstart", (event) => event.preventDefault());
  histogram.addEventListener("pointerdown", (event) => {
    begun = bar(event);
  });
  histogram.addEventListener("pointerup", (event) => {
    const end = bar(event);
    if (begun && end && begun !== end) location.assign(range(begun, end));
    begun = undefined;
  });
  let marked;
  histogram.addEventListener("keydown", (event) => {
    const chosen = bar(event);
    if (!chosen || event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    if (marked) return location.assign(range(marked, chosen));
    marked = chosen;
    chosen.classList.add("marked");
  });
}

/** Returns a page of the portal as a document, without running it. */
function read(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // a DOMParser needs a policy of trusted types
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => (request.response ? resolve(request.response) : reject(new Error("no page")));
    request.onerror = () => reject(new Error("no response"));
    request.send();
  });
}

/** Looks for new records, more rarely while there are none. It waits while the page is hidden. */
function follow(section) {
  const line = document.querySelector("[data-live]");
  const box = line.querySelector("input");
  const said = line.querySelector("[role=status]");
  const query = new URLSearchParams(section.dataset.query);
  let wait = SOON;
  let timer;
  line.hidden = false;

  async function look() {
    if (!box.checked || document.hidden) return;
    try {
      query.set("after", section.dataset.newest);
      query.set("order", "asc");
      query.set("limit", "1");
      const { records } = await send("GET", `/api/v1/audit/records?${query}`);
      wait = records.length ? SOON : Math.min(wait * 2, LATE);
      said.textContent = "";
      if (records.length) await show();
      if (!box.checked) return;
    } catch (error) {
      if (error.status === 401 || error.status === 403) return stop("You are signed out.");
      wait = Math.max(Math.min(wait * 2, LATE), (error.retryAfter || 0) * 1000);
      said.textContent = "Waiting for the service.";
    }
    timer = setTimeout(look, wait);
  }

  /** Takes the table of the page as it is now. */
  async function show() {
    const fresh = (await read(location.href)).querySelector("[data-records]");
    if (!fresh) return stop("");
    section.replaceChildren(...fresh.childNodes);
    section.dataset.newest = fresh.dataset.newest;
    addLocalTimes();
  }

  function stop(why) {
    box.checked = false;
    clearTimeout(timer);
    said.textContent = why;
  }

  function begin() {
    clearTimeout(timer);
    wait = SOON;
    look();
  }
  box.addEventListener("change", () => (box.checked ? begin() : stop("")));
  document.addEventListener("visibilitychange", begin);
}

addLocalTimes();
const section = document.querySelector("[data-records]");
if (section) follow(section);
