// Sessions: remembers, refreshes and begins them.
import { send } from "./http.js";

const KNOWN = "pqkeep-signed-in";

/** Remembers that this browser has had a session. Other browsers send no refresh requests. */
export function rememberSession(begun = true) {
  if (begun) localStorage.setItem(KNOWN, "1");
  else localStorage.removeItem(KNOWN);
}

export function hadSession() {
  return localStorage.getItem(KNOWN) !== null;
}

/** Exchanges the refresh token. Returns whether the session continues. */
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

/** The path of the sign-in page, with this page to return to. */
export function signInPath() {
  const area = document.body.dataset.stepUp === "operator" ? "/operator" : "";
  const next = encodeURIComponent(location.pathname + location.search);
  return `${document.body.dataset.root}${area}/sign-in?next=${next}`;
}
