// Dialogs: opened by buttons, or asked by code.

export class Cancelled extends Error {}

const held = new Set();

/** Keeps what is shown once, until the visitor says that they have it: whatever leads away from it asks first. */
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
  if (event.key === "Escape" && [...held].some((each) => each.open)) event.preventDefault();
});
document.addEventListener("cancel", (event) => held.has(event.target) && event.preventDefault(), true);

/** Opens a dialog whose form answers. Returns the answer; raises Cancelled when it is closed instead. */
export function ask(dialog, wire) {
  const template = dialog.querySelector("form");
  const form = template.cloneNode(true); // without the listeners of the last time
  template.replaceWith(form);
  const fail = (message) => {
    form.querySelector(".form-error").textContent = message;
  };
  return new Promise((resolve, reject) => {
    let answered = false;
    const done = (value) => {
      answered = true;
      dialog.close();
      resolve(value);
    };
    fail("");
    wire(done, form, fail);
    dialog.addEventListener("close", () => answered || reject(new Cancelled()), { once: true });
    dialog.showModal();
    dialog.querySelector("input:not([readonly])")?.focus();
  });
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]");
  if (opener) document.getElementById(opener.dataset.open).showModal();
  const closer = event.target.closest("[data-close]");
  if (!closer) return;
  const dialog = closer.closest("dialog");
  release(dialog);
  dialog?.close();
});

// A dialog that has shown what is shown once reloads the page when it is closed.
document.addEventListener(
  "close",
  (event) => {
    if (held.has(event.target)) event.target.showModal(); // a browser may close it all the same
    else if (event.target.dataset?.afterClose === "reload") location.reload();
  },
  true,
);
