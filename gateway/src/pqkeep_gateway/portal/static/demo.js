// Signs in the demo tenant's owner. Only pqkeepd dev serves this page, and prints its link.
import { send } from "./http.js";
import { t } from "./languages.js";
import { rememberSession } from "./sessions.js";

const { invitation, email, password } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
history.replaceState(null, "", location.pathname);

async function signIn() {
  try {
    if (invitation) return await send("POST", "/api/v1/auth/accept-invitation", { token: invitation, password });
  } catch (error) {
    if (error.status !== 401 && error.status !== 409) throw error; // accepted before: the password works
  }
  return send("POST", "/api/v1/auth/login", { email, password });
}

try {
  await signIn();
  rememberSession();
  location.replace(document.body.dataset.root);
} catch (error) {
  document.getElementById("progress").textContent = t`This link no longer works: ${error.message}`;
}
