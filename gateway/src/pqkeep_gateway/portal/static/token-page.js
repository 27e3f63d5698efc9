// A page with a token after the # in its link. Servers and their logs never see the token.
import { rememberSession } from "./sessions.js";

const token = decodeURIComponent(location.hash.slice(1));
const isWhole = /^[\w-]{20,}$/.test(token);
for (const part of document.querySelectorAll("[data-with-token]")) part.hidden = !isWhole;
document.querySelector("[data-without-token]").hidden = isWhole;
if (isWhole) {
  document.querySelector("input[name=token]").value = token;
  history.replaceState(null, "", location.pathname); // keeps the token out of the browser's history
  document.addEventListener("responded", (event) => "id" in event.detail && rememberSession());
  document.querySelector("form input:not([type=hidden])").focus();
}
