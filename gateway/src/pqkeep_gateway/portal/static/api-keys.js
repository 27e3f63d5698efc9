// API keys: the form's scopes, the new API key, and the remaining time of rotated ones.

import { showProblem } from "./fields.js";
import { t } from "./languages.js";
import { span } from "./spans.js";

const scopes = document.querySelector("[data-scopes]");
const checked = (name) => [...scopes.form.querySelectorAll(`[name=${name}]:checked`)].map((box) => box.value);
const code = document.querySelectorAll("[data-follows-scopes] code");
const codes = [...code].map((place) => place.textContent);

/** Whether scopes are chosen. They are not for "Everything" and "As now". */
const isChosen = () => !scopes.querySelector("[data-everything], [data-as-now]")?.checked;

/** The chosen scopes, or null if none are chosen. Administration of the tenant is a scope of its own. */
function chosenScopes() {
  if (!isChosen()) return null;
  const groups = checked("group");
  const whole = groups.filter((group) => group === scopes.dataset.wholeTenant);
  const onKeys = groups.filter((group) => group !== scopes.dataset.wholeTenant);
  const keyrings = scopes.form.elements.namedItem("keyrings").value.split(/[\s,]+/).filter(Boolean);
  const algorithms = checked("only");
  const limits = { ...(keyrings.length && { keyrings }), ...(algorithms.length && { algorithms }) };
  const chosen = [];
  if (onKeys.length) chosen.push({ operations: onKeys, ...limits });
  if (whole.length) chosen.push({ operations: whole });
  return chosen;
}

scopes?.form.addEventListener("input", () => {
  const sendsNow = "now" in scopes.dataset; // "As now" is sent, and may name keyrings that do not exist
  for (const input of scopes.form.querySelectorAll(`[name=group], [name=only], [name=keyrings]${sendsNow ? "" : ", [name=allow_absent_keyrings]"}`)) input.disabled = !isChosen();
  const shown = !isChosen() ? (sendsNow ? '["use"]' : '["*"]') : JSON.stringify(checked("group")).replaceAll(",", ", ");
  code.forEach((place, index) => (place.textContent = codes[index].replace('["use"]', shown)));
});

// In the capture phase, before forms.js reads the form.
document.addEventListener(
  "submit",
  (event) => {
    if (event.target !== scopes?.form) return;
    const chosen = chosenScopes();
    scopes.form.elements.namedItem("scopes").value = chosen === null ? (scopes.dataset.now ?? "") : JSON.stringify(chosen);
    if (chosen?.length !== 0) return;
    event.preventDefault();
    event.stopPropagation();
    showProblem(event.target, t`Choose at least one permission.`, "scopes");
  },
  true,
);

document.addEventListener("responded", (event) => {
  const { api_key: apiKey } = event.detail.new_key ?? event.detail;
  if (!apiKey) return;
  show("key", apiKey);
  show("environment", `export PQKEEP_URL=${location.origin}\nexport PQKEEP_API_KEY=${apiKey}`);
});

function show(name, text) {
  document.querySelector(`[data-made="${name}"] code`).textContent = text;
}

// Counts from the time when the page was loaded, because the browser's clock may be wrong.
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
  timers = timers.filter((timer) => timer.isConnected);
  if (!timers.length) clearInterval(ticking);
}

function ended() {
  const badge = document.createElement("span");
  badge.className = "badge";
  badge.textContent = t`revoked`;
  return badge;
}
