// API keys: the one that was made, shown once; and the time that rotated ones have left.

import { showProblem } from "./fields.js";
import { span } from "./spans.js";

const scopes = document.querySelector("[data-scopes]");
const checked = (name) => [...scopes.form.querySelectorAll(`[name=${name}]:checked`)].map((each) => each.value);
const code = document.querySelectorAll("[data-follows-scopes] code");
const codes = [...code].map((each) => each.textContent);

/** Whether scopes are chosen at all: an API key that may do everything has none, and one can keep its own. */
const isChosen = () => !scopes.querySelector("[data-everything], [data-as-now]").checked;

/** The scopes that are chosen: what concerns the whole tenant is in one of its own. Null: none are sent. */
function chosenScopes() {
  if (!isChosen()) return null;
  const groups = checked("group");
  const whole = groups.filter((each) => each === scopes.dataset.wholeTenant);
  const onKeys = groups.filter((each) => each !== scopes.dataset.wholeTenant);
  const keyrings = scopes.form.elements.namedItem("keyrings").value.split(/[\s,]+/).filter(Boolean);
  const algorithms = checked("only");
  const limits = { ...(keyrings.length && { keyrings }), ...(algorithms.length && { algorithms }) };
  const found = [];
  if (onKeys.length) found.push({ operations: onKeys, ...limits });
  if (whole.length) found.push({ operations: whole });
  return found;
}

scopes?.form.addEventListener("input", () => {
  for (const each of scopes.form.querySelectorAll("[name=group], [name=only], [name=keyrings], [name=allow_absent_keyrings]")) each.disabled = !isChosen();
  const shown = !isChosen() ? '["*"]' : JSON.stringify(checked("group")).replaceAll(",", ", ");
  code.forEach((each, index) => (each.textContent = codes[index].replace('["use"]', shown)));
});

// Before forms.js reads the form.
document.addEventListener(
  "submit",
  (event) => {
    if (event.target !== scopes?.form) return;
    const found = chosenScopes();
    scopes.form.elements.namedItem("scopes").value = found === null ? "" : JSON.stringify(found);
    if (found?.length !== 0) return;
    event.preventDefault();
    event.stopPropagation();
    showProblem(event.target, "Choose at least one thing that it may do.", "scopes");
  },
  true,
);

document.addEventListener("answered", (event) => {
  const { api_key: made } = event.detail.new_key ?? event.detail;
  if (!made) return;
  show("key", made);
  show("environment", `export PQKEEP_URL=${location.origin}\nexport PQKEEP_API_KEY=${made}`);
});

function show(name, text) {
  document.querySelector(`[data-made="${name}"] code`).textContent = text;
}

// By the time since the page came, as the browser's clock may be another than the service's.
let timers = [...document.querySelectorAll("[data-seconds]")];
const began = performance.now();
const ticking = timers.length && setInterval(tick, 250);

function tick() {
  const past = Math.floor((performance.now() - began) / 1000);
  for (const timer of timers) {
    const left = Number(timer.dataset.seconds) - past;
    if (left > 0) timer.textContent = span(left);
    else timer.parentElement.replaceWith(ended());
  }
  timers = timers.filter((each) => each.isConnected);
  if (!timers.length) clearInterval(ticking);
}

function ended() {
  const badge = document.createElement("span");
  badge.className = "badge";
  badge.textContent = "revoked";
  return badge;
}
