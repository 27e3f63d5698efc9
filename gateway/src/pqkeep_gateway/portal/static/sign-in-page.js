// The sign-in page. The browser can offer passkeys in the field of the e-mail address.
import { nextPage } from "./next-page.js";
import { canAutofill, signIn } from "./passkeys.js";
import { rememberSession } from "./sessions.js";
import { wireSignIn } from "./sign-in.js";

const offer = new AbortController();
const go = () => location.assign(nextPage());
wireSignIn(document, go, offer);

async function offerPasskeys() {
  if (!document.querySelector("[data-step=password] [data-passkey]") || !(await canAutofill())) return;
  await signIn({ mediation: "conditional", signal: offer.signal });
  rememberSession();
  go();
}

offerPasskeys().catch((error) => {
  if (error.status === undefined) throw error; // the button says what is wrong when it is used
});
