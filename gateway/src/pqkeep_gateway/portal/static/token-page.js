// A page whose link carries a token behind the #: servers and their logs never see it.
import { rememberSession } from "./sessions.js";

const token = decodeURIComponent(location.hash.slice(1));
const isWhole = /^[\w-]{20,}$/.test(token);
for (const each of document.querySelectorAll("[data-with-token]")) each.hidden = !isWhole;
document.querySelector("[data-without-token]").hidden = isWhole;
if (isWhole) {
  document.querySelector("input[name=token]").value = token;
  history.replaceState(null, "", location.pathname); // it works once, and is not to stay in the history
  document.addEventListener("answered", (event) => "id" in event.detail && rememberSession());
  document.querySelector("form input:not([type=hidden])").focus();
}
