// Sessions: going on, beginning again, and proving presence for sensitive actions (step-up).
import { ask, Cancelled } from "./dialogs.js";
import { countDown } from "./forms.js";
import { send } from "./http.js";
import { wireSignIn } from "./sign-in.js";

const KNOWN = "pqkeep-signed-in";

/** Remembers that this browser has had a session, so that others are not refreshed in vain. */
export function rememberSession(begun = true) {
  if (begun) localStorage.setItem(KNOWN, "1");
  else localStorage.removeItem(KNOWN);
}

export function hadSession() {
  return localStorage.getItem(KNOWN) !== null;
}

/** Exchanges the refresh token. Returns whether the session goes on. */
export async function refresh() {
  if (!hadSession()) return false;
  try {
    await send("POST", "/api/v1/auth/refresh");
    return true;
  } catch (error) {
    if (error.status !== 401) throw error;
    rememberSession(false);
    return false;
  }
}

/** Asks for the password in a dialog, over the page as it is. Raises Cancelled. */
export async function signInAgain() {
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

/** Where somebody without a session goes, to come back to this page. */
export function signInPath() {
  const area = document.body.dataset.stepUp === "operator" ? "/operator" : "";
  const next = encodeURIComponent(location.pathname + location.search);
  return `${document.body.dataset.root}${area}/sign-in?next=${next}`;
}

/** Returns the headers that prove presence. Raises Cancelled. */
export async function stepUp() {
  const dialog = document.getElementById("step-up");
  return ask(dialog, (done, form, fail) => {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(form));
      if (Object.values(given).some((each) => !each.trim())) return fail("Fill it in, please.");
      if ("operator_key" in given) {
        form.reset();
        return done({ "X-API-Key": given.operator_key.trim() });
      }
      delete given.confirmed;
      given.for_session = true;
      if ("totp_code" in given) given.totp_code = given.totp_code.replaceAll(" ", "");
      try {
        const { step_up_token: token } = await stepUpToken(given);
        form.reset();
        done({ "X-Step-Up-Token": token });
      } catch (error) {
        if (error.status === undefined) throw error;
        form.querySelector("input.code")?.select();
        countDown(error, fail);
      }
    });
  });
}

async function stepUpToken(given) {
  try {
    return await send("POST", "/api/v1/auth/step-up", given);
  } catch (error) {
    if (error.code !== "ERR_AUTH_001") throw error;
    if (!(await refresh())) await signInAgain();
    return send("POST", "/api/v1/auth/step-up", given);
  }
}
