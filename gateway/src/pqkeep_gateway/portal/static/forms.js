// Forms that call an API operation: <form data-method data-path data-then>. The fields are the body, or the
// query of a method without a body.
import { call } from "./calls.js";
import { Cancelled, hold, release } from "./dialogs.js";
import { bodyOf, clearProblems, countDown, isComplete, showProblem } from "./fields.js";
import { t } from "./languages.js";
import { leaveToast, toast } from "./toasts.js";

const keys = new WeakMap();
/** The Idempotency-Key of a form. The same content has the same key, so a retry has no second effect. */
function idempotencyKey(form, path, body) {
  const content = path + JSON.stringify(body);
  if (keys.get(form)?.content !== content) keys.set(form, { content, key: crypto.randomUUID?.() ?? random() });
  return keys.get(form).key;
}

// Browsers have no randomUUID on plain HTTP pages, except on loopback.
function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The path of a form's request. Fields with the name of a variable in it are taken out of the body. */
function pathOf(form, body) {
  return form.dataset.path.replace(/\{(\w+)\}/g, (_, name) => {
    const value = encodeURIComponent(body[name] ?? "");
    delete body[name];
    return value;
  });
}

export async function submit(form) {
  clearProblems(form);
  if (!isComplete(form)) return;
  const body = bodyOf(form);
  const { method, then } = form.dataset;
  const path = pathOf(form, body);
  const takesBody = method === "POST" || method === "PUT" || method === "PATCH";
  const button = form.querySelector("button:not([type=button])");
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  if (then.startsWith("show:")) hold(form); // the response is shown only once
  try {
    const query = takesBody ? "" : new URLSearchParams(body).toString();
    const data = await call(method, query ? `${path}?${query}` : path, takesBody ? body : undefined, {
      idempotencyKey: "idempotent" in form.dataset ? idempotencyKey(form, path, body) : "",
    });
    keys.delete(form);
    form.dispatchEvent(new CustomEvent("responded", { detail: data, bubbles: true }));
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

/** Does the next step: "reload", "go:PATH", "show:DIALOG" with the response, "show-next" element, or "stay". */
function finish(form, then, data) {
  if (data.state === "waiting" && data.requested_by) {
    leaveToast(t`Nothing is changed yet. Another person must approve this request.`);
    location.assign(`${document.body.dataset.root}/approvals`);
    return;
  }
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
    const before = form.closest("[data-before-response]");
    const after = before.parentElement.querySelector("[data-after-response]");
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
