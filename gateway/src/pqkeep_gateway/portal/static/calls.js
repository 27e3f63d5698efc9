// Calls the public API. If a request needs a new session or a step-up, it asks the visitor.
import { ask, Cancelled } from "./dialogs.js";
import { countDown } from "./fields.js";
import { send } from "./http.js";
import { t } from "./languages.js";
import { begin, use } from "./passkeys.js";
import { refresh, rememberSession, signInPath } from "./sessions.js";
import { wireSignIn } from "./sign-in.js";

/** Sends one request, and repeats it after a sign-in or step-up. The service checks the request before it
 * requires a step-up, and requires none while a proof covers the session. Raises ApiError. */
export async function call(method, path, body, { idempotencyKey = "" } = {}) {
  const headers = idempotencyKey ? { "Idempotency-Key": idempotencyKey } : {};
  const isOperators = document.body.dataset.stepUp === "operator";
  for (;;) {
    try {
      // Without a session, a new tenant would be a stranger's sign-up.
      if (isOperators && method !== "GET" && !("X-API-Key" in headers)) await send("GET", "/api/v1/auth/operator");
      return await send(method, path, body, headers);
    } catch (error) {
      if (error.code === "ERR_MFA_013") {
        Object.assign(headers, await stepUp());
      } else if (error.status === 401 && error.code === "ERR_AUTH_001" && !("X-API-Key" in headers)) {
        if (isOperators) Object.assign(headers, await stepUp());
        else if (!(await refresh())) await signInAgain();
      } else {
        throw error;
      }
    }
  }
}

/** Signs in again in a dialog. The page behind it stays as it is. Raises Cancelled. */
async function signInAgain() {
  const dialog = document.getElementById("sign-in-again");
  if (!dialog) {
    location.assign(signInPath());
    throw new Cancelled();
  }
  await ask(dialog, (done, form) => {
    if (!("signedInElsewhere" in form.dataset)) return wireSignIn(dialog, done);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      rememberSession();
      done();
    });
  });
}

/** Returns the headers that prove presence. Raises Cancelled. */
async function stepUp() {
  const dialog = document.getElementById("step-up");
  return ask(dialog, (done, form, fail) => {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(form));
      if (Object.values(given).some((value) => !value.trim())) return fail(t`This field is required.`);
      if ("operator_key" in given) {
        form.reset();
        return done({ "X-API-Key": given.operator_key.trim() });
      }
      if ("signed_in_again" in given) return done({}); // a cookie proves it
      delete given.confirmed;
      given.for_session = true;
      if ("totp_code" in given) given.totp_code = given.totp_code.replaceAll(" ", "");
      await prove(given);
    });
    const button = form.querySelector("[data-passkey]");
    button?.addEventListener("click", async () => {
      fail("");
      button.setAttribute("aria-busy", "true");
      try {
        const used = await use(await withSession(() => begin("begin-step-up")));
        await prove({ ...used, for_session: true });
      } catch (error) {
        if (error.status === undefined) throw error;
        fail(error.message);
      } finally {
        button.removeAttribute("aria-busy");
      }
    });

    async function prove(given) {
      try {
        const { step_up_token: token } = await withSession(() => send("POST", "/api/v1/auth/step-up", given));
        form.reset();
        done({ "X-Step-Up-Token": token });
      } catch (error) {
        if (error.status === undefined) throw error;
        form.querySelector("input.code")?.select();
        countDown(error, fail);
      }
    }
  });
}

/** Sends a request, and once more in a new session if the old one has ended. */
async function withSession(work) {
  try {
    return await work();
  } catch (error) {
    if (error.code !== "ERR_AUTH_001") throw error;
    if (!(await refresh())) await signInAgain();
    return work();
  }
}
