// Sign-in with a password and an optional second factor, for the template _sign_in.html.
import { clearProblems, countDown, isComplete, showProblem } from "./fields.js";
import { send } from "./http.js";
import { signIn } from "./passkeys.js";
import { rememberSession } from "./sessions.js";

const VERIFY = { app: "totp_code", recovery: "recovery_code", email: "email_code" };

/** Wires the forms. Calls done after the session has begun. offer: aborts the browser's offer of passkeys. */
export function wireSignIn(root, done, offer = null) {
  const box = root.querySelector("[data-sign-in]");
  const steps = Object.fromEntries([...box.querySelectorAll("[data-step]")].map((form) => [form.dataset.step, form]));
  let challenge = "";

  function show(step) {
    for (const [name, form] of Object.entries(steps)) form.hidden = name !== step;
    steps[step].querySelector("input:not([readonly]), button").focus();
  }

  async function attempt(form, work) {
    clearProblems(form);
    if (isComplete(form)) await wait(form, form.querySelector("button"), work);
  }

  async function wait(form, button, work) {
    button.setAttribute("aria-busy", "true");
    try {
      await work();
    } catch (error) {
      if (error.status === undefined) throw error;
      countDown(error, (message) => showProblem(form, message, error.field));
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  function succeed() {
    rememberSession();
    for (const form of Object.values(steps)) form.reset();
    show("password");
    done();
  }

  const sendCode = () => send("POST", "/api/v1/auth/mfa/email", { challenge_token: challenge });

  steps.passkey.onsubmit = (event) => event.preventDefault();
  steps.password.onsubmit = (event) => {
    event.preventDefault();
    attempt(steps.password, async () => {
      const { email, password } = Object.fromEntries(new FormData(steps.password));
      try {
        await send("POST", "/api/v1/auth/login", { email: email.trim(), password });
        succeed();
      } catch (error) {
        if (error.code !== "ERR_AUTH_MFA_001" || !error.challengeToken) throw error;
        challenge = error.challengeToken;
        if (error.secondFactor === "email") await sendCode();
        box.querySelector("[data-step=recovery] [data-go]").dataset.go = error.secondFactor;
        show(error.secondFactor);
      }
    });
  };
  for (const [step, name] of Object.entries(VERIFY)) {
    steps[step].onsubmit = (event) => {
      event.preventDefault();
      attempt(steps[step], async () => {
        const code = new FormData(steps[step]).get(name).replaceAll(" ", "");
        await send("POST", "/api/v1/auth/mfa/verify", { challenge_token: challenge, [name]: code });
        succeed();
      });
    };
  }
  for (const button of box.querySelectorAll("[data-passkey]")) {
    button.onclick = () => {
      offer?.abort(); // a browser runs one request at a time
      clearProblems(button.form);
      wait(button.form, button, async () => {
        await signIn();
        succeed();
      });
    };
  }
  for (const button of box.querySelectorAll("[data-go]")) button.onclick = () => show(button.dataset.go);
  box.querySelector("[data-send-again]").onclick = () => attempt(steps.email, sendCode);
}
