// Dialogs: opened by buttons, or by code that waits for the visitor's input.

export class Cancelled extends Error {}

const held = new Set();

/** Protects content that is shown only once: the page cannot be left silently until release() is called. */
export function hold(shown) {
  held.add(shown);
}

export function release(shown) {
  held.delete(shown);
}

addEventListener("beforeunload", (event) => {
  if (held.size) event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && [...held].some((dialog) => dialog.open)) event.preventDefault();
});
document.addEventListener("cancel", (event) => held.has(event.target) && event.preventDefault(), true);

/** Opens a dialog with a form. Returns the value passed to done(). Raises Cancelled if the dialog is closed. */
export function ask(dialog, wire) {
  const template = dialog.querySelector("form");
  const form = template.cloneNode(true); // removes the listeners of an earlier call
  template.replaceWith(form);
  const fail = (message) => {
    form.querySelector(".form-error").textContent = message;
  };
  return new Promise((resolve, reject) => {
    let isDone = false;
    const done = (value) => {
      isDone = true;
      dialog.close();
      resolve(value);
    };
    fail("");
    wire(done, form, fail);
    dialog.addEventListener("close", () => isDone || reject(new Cancelled()), { once: true });
    dialog.showModal();
    dialog.querySelector("[data-passkey]:enabled, input:not([readonly])")?.focus();
  });
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]");
  if (opener) {
    const dialog = document.getElementById(opener.dataset.open);
    const row = opener.closest("[data-row]");
    if (row) fill(dialog, JSON.parse(row.dataset.row));
    dialog.showModal();
  }
  const closer = event.target.closest("[data-close]");
  if (!closer) return;
  const dialog = closer.closest("dialog");
  release(dialog);
  dialog?.close();
});

/** Makes a dialog that all rows of a list share the dialog of one row: its texts, fields and path have {name}. */
function fill(dialog, row) {
  const filled = (text) => text.replace(/\{(\w+)\}/g, (whole, name) => row[name] ?? whole);
  for (const place of dialog.querySelectorAll("[data-of-row]")) place.textContent = filled(place.dataset.ofRow);
  for (const box of dialog.querySelectorAll("[data-row-select]")) box.querySelector("select").value = row[box.dataset.rowSelect];
  for (const input of dialog.querySelectorAll("[data-row-equals]")) {
    input.dataset.equals = filled(input.dataset.rowEquals);
    input.value = "";
  }
  for (const form of dialog.querySelectorAll("form[data-path]")) {
    form.dataset.rowPath ??= form.dataset.path;
    form.dataset.path = form.dataset.rowPath.replace(/\{(\w+)\}/g, (whole, name) => (name in row ? encodeURIComponent(row[name]) : whole));
    form.querySelector(".form-error").textContent = "";
  }
}

/** Opens the dialog that the address names behind its #. */
function openLinked() {
  const dialog = document.getElementById(location.hash.slice(1));
  if (dialog?.matches("dialog[data-linked]:not([open])")) dialog.showModal();
}
addEventListener("hashchange", openLinked);
openLinked();

// A dialog with content that is shown only once reloads the page when it is closed.
document.addEventListener(
  "close",
  (event) => {
    if (held.has(event.target)) event.target.showModal(); // some browsers close it in spite of preventDefault
    else if (event.target.dataset?.afterClose === "reload") location.reload();
  },
  true,
);
