// For every page: copy buttons, the menu, sign-out, the loading bar.
import "./dialogs.js";
import "./forms.js";
import { send } from "./http.js";
import { t } from "./languages.js";
import { rememberSession } from "./sessions.js";
import { showLeftToast, toast } from "./toasts.js";

enableForms();
if (document.body.dataset.email) rememberSession(); // also a session begun by single sign-on
showLeftToast();

document.addEventListener("click", async (event) => {
  const copier = event.target.closest("[data-copy]");
  if (copier) await copy(copier);
  const toggle = event.target.closest("[data-toggle]");
  if (toggle) {
    const isOpen = document.getElementById(toggle.dataset.toggle).classList.toggle("open");
    toggle.setAttribute("aria-expanded", String(isOpen));
  }
  const leaver = event.target.closest("[data-sign-out]");
  if (leaver) await signOut(leaver.dataset.signOut);
});

/** Enables the buttons of forms when all modules of the page have run. Without one, a form may be incomplete. */
async function enableForms() {
  const modules = [...document.querySelectorAll("script[type=module]")].map((script) => import(script.src));
  if ((await Promise.allSettled(modules)).some((result) => result.status === "rejected")) {
    toast(t`A part of this page could not be loaded. Reload the page to make changes.`);
    return;
  }
  for (const button of document.querySelectorAll("[data-waits-for-modules]")) button.disabled = false;
  document.body.classList.remove("no-script");
}

addEventListener("beforeunload", (event) => event.defaultPrevented || document.documentElement.classList.add("is-loading"));
addEventListener("pageshow", () => document.documentElement.classList.remove("is-loading"));

async function copy(button) {
  const text = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = t`Copied`;
    setTimeout(() => (button.textContent = t`Copy`), 2000);
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    toast(t`Press Ctrl+C to copy the selected text.`);
  }
}

async function signOut(kind) {
  const path = kind === "operator" ? "/api/v1/auth/operator/logout" : "/api/v1/auth/logout";
  try {
    await send("POST", path);
  } catch (error) {
    if (error.status !== 401) return toast(error.message);
  }
  rememberSession(false);
  const area = kind === "operator" ? "/operator" : "";
  location.assign(`${document.body.dataset.root}${area}/sign-in`);
}
