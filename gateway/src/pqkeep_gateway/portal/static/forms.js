// Forms that call an operation of the API: <form data-method data-path data-then>. Their fields are the body,
// or the query of a method that takes none.
import { call } from "./calls.js";
import { Cancelled, hold, release } from "./dialogs.js";
import { bodyOf, clearProblems, countDown, isComplete, showProblem } from "./fields.js";
import { leaveToast, toast } from "./toasts.js";

const keys = new WeakMap();
/** The Idempotency-Key of a form: the same for the same content, so that a retry changes nothing twice. */
function idempotencyKey(form, body) {
  const content = form.dataset.path + JSON.stringify(body);
  if (keys.get(form)?.content !== content) keys.set(form, { content, key: crypto.randomUUID?.() ?? random() });
  return keys.get(form).key;
}

// Over plain HTTP from another host than loopback there is no randomUUID.
function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");
}

export async function submit(form) {
  clearProblems(form);
  if (!isComplete(form)) return;
  const body = bodyOf(form);
  const { method, path, then } = form.dataset;
  const takesBody = method === "POST" || method === "PUT" || method === "PATCH";
  const button = form.querySelector("button:not([type=button])");
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  if (then.startsWith("show:")) hold(form); // the answer comes once
  try {
    const query = takesBody ? "" : new URLSearchParams(body).toString();
    const data = await call(method, query ? `${path}?${query}` : path, takesBody ? body : undefined, {
      idempotencyKey: "idempotent" in form.dataset ? idempotencyKey(form, body) : "",
    });
    keys.delete(form);
    form.dispatchEvent(new CustomEvent("answered", { detail: data, bubbles: true }));
    finish(form, then, data);
  } catch (error) {
    if (error instanceof Cancelled) return;
    if (error.status === undefined) throw error;
    countDown(error, (message) => showProblem(form, message, error.field));
  } finally {
    release(form);
    button.removeAttribute("aria-busy");
    button.disabled = false;
  }
}

/** What comes after: "reload", "go:PATH", "show:DIALOG" (the answer, once), "show-next" (what follows the form), "stay". */
function finish(form, then, data) {
  const [what, where] = then.split(/:(.*)/s);
  if (what === "show") {
    form.closest("dialog")?.close();
    const dialog = document.getElementById(where);
    for (const place of dialog.querySelectorAll("[data-result]")) {
      place.textContent = String(data[place.dataset.result] ?? "");
    }
    dialog.dataset.afterClose = "reload";
    hold(dialog);
    dialog.showModal();
  } else if (what === "show-next") {
    const before = form.closest("[data-before-answer]");
    const after = before.parentElement.querySelector("[data-after-answer]");
    before.hidden = true;
    after.hidden = false;
    after.focus();
  } else if (what === "go") {
    leaveToast(form.dataset.toast);
    location.assign(where);
  } else if (what === "reload") {
    leaveToast(form.dataset.toast);
    location.reload();
  } else if (form.dataset.toast) {
    toast(form.dataset.toast);
  }
}

document.addEventListener("submit", (event) => {
  if (!event.target.dataset.path) return;
  event.preventDefault();
  submit(event.target);
});
