// The fields of a form: their values and problems.
import { t } from "./languages.js";
import { many } from "./spans.js";

let counting; // the timer of the visible countdown

const READ = {
  integer: (text) => (/^-?\d+$/.test(text) ? Number(text) : text),
  boolean: (text) => text === "true",
  json: (text) => JSON.parse(text),
  labels: (text) => Object.fromEntries(linesOf(text).map(pair)),
  list: (text) => text.split(/[\s,]+/).filter(Boolean),
  day: (text) => `${text}T23:59:59Z`, // the end of the day
  start: (text) => (isDay(text) ? `${text}T00:00:00Z` : text),
  claims: (text) => claimsOf(linesOf(text)),
  exceptions: (text) => linesOf(text).map(exception),
};

const linesOf = (text) => text.split("\n").filter((line) => line.trim());
const isDay = (text) => /^\d{4}-\d{2}-\d{2}$/.test(text);

/** The parts before and after a line's first colon. */
function pair(line) {
  const [name, ...value] = line.split(":");
  return [name.trim(), value.join(":").trim()];
}

/** The exception of a rule from a line such as "3: 2027-04-01", with the end of that day. */
function exception(line) {
  const [version, until] = pair(line);
  return { api_key: READ.integer(version), until: isDay(until) ? READ.day(until) : until };
}

/** The accepted values of each claim from lines such as "ref=refs/heads/main". A repeated claim has several. */
function claimsOf(lines) {
  const claims = new Map();
  for (const line of lines) {
    const [name, ...value] = line.split("=");
    claims.set(name.trim(), [...(claims.get(name.trim()) ?? []), value.join("=").trim()]);
  }
  return Object.fromEntries(claims);
}

/** The request body from a form. It omits empty fields, and unchanged fields that would need a step-up. */
export function bodyOf(form) {
  const body = {};
  for (const input of form.elements) {
    if (!input.name || "skip" in input.dataset || input.disabled) continue;
    if (input.type === "radio" && !input.checked) continue;
    if ("onlyChanged" in input.dataset && input.value === input.defaultValue) continue;
    if (input.dataset.type === "member") {
      body[input.name] ??= [];
      if (input.checked) body[input.name].push(input.value);
    } else if (input.type === "checkbox") body[input.name] = input.checked;
    else if (input.value !== "" || "sendsEmpty" in input.dataset) body[input.name] = READ[input.dataset.type]?.(input.value) ?? input.value;
  }
  return body;
}

/** Shows a problem at its field, or above the buttons. */
export function showProblem(form, message, field = "") {
  const place = field && form.querySelector(`[data-problem="${CSS.escape(field)}"]`);
  const named = field && form.elements.namedItem(field);
  const input = named instanceof RadioNodeList ? named[0] : named; // the first of several boxes
  if (place && input instanceof HTMLElement) {
    place.textContent = message;
    input.setAttribute("aria-invalid", "true");
    if (place.hidden) input.focus(); // only the first time: a countdown changes the message
    place.hidden = false;
  } else {
    form.querySelector(".form-error").textContent = message;
  }
}

/** Shows an error's message. For a used code, it counts down the seconds until the next code. */
export function countDown(error, say) {
  clearInterval(counting);
  let left = error.code === "ERR_MFA_001" ? error.retryAfter : 0;
  if (!left) return say(error.message);
  const tick = () => {
    if (left > 0) say(t`This code was used before. Use the next code in ${many(left, "second")}.`);
    else {
      clearInterval(counting);
      say(t`Enter the code that your app shows now.`);
    }
    left -= 1;
  };
  counting = setInterval(tick, 1000);
  tick();
}

export function clearProblems(form) {
  clearInterval(counting);
  form.querySelector(".form-error").textContent = "";
  for (const place of form.querySelectorAll("[data-problem]")) place.hidden = true;
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

/** Checks required, repeated and confirmation fields. Returns false after it has shown a problem. */
export function isComplete(form) {
  for (const input of form.elements) {
    if (input.required && !input.value.trim()) {
      showProblem(form, t`This field is required.`, input.name);
      return false;
    }
    const other = input.dataset?.sameAs && form.elements.namedItem(input.dataset.sameAs);
    if (other && input.value !== other.value) {
      showProblem(form, t`The passwords do not match.`, input.name);
      return false;
    }
    const wrong = input.dataset?.type === "labels" && linesOf(input.value).find((line) => !line.includes(":"));
    if (wrong) {
      showProblem(form, t`“${wrong.trim()}” has no colon: write a name and a value, such as team: payments.`, input.name);
      return false;
    }
    if (input.dataset?.equals !== undefined && input.value !== input.dataset.equals) {
      showProblem(form, t`This must be exactly: ${input.dataset.equals}`, input.name);
      return false;
    }
  }
  return true;
}
