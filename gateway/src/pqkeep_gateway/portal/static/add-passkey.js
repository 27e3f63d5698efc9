// Adds a passkey, and shows the recovery codes that come with the first second factor.
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { t } from "./languages.js";
import { create, whyNot } from "./passkeys.js";
import { showCodes } from "./recovery-codes.js";
import { leaveToast } from "./toasts.js";

const button = document.getElementById("add-passkey");
const problem = document.querySelector("[data-enroll=begin] .form-error");
if (problem) problem.textContent = whyNot();

button?.addEventListener("click", async () => {
  problem.textContent = "";
  button.setAttribute("aria-busy", "true");
  try {
    const made = await create(await call("POST", "/api/v1/auth/passkeys/begin"));
    const { recovery_codes: codes } = await call("POST", "/api/v1/auth/passkeys", made);
    if (codes) return showCodes(codes);
    leaveToast(t`The passkey is added. Your other sessions have ended.`);
    location.assign(`${document.body.dataset.root}/security`);
  } catch (error) {
    if (error instanceof Cancelled) return;
    if (error.status === undefined) throw error;
    problem.textContent = error.message;
  } finally {
    button.removeAttribute("aria-busy");
  }
});
