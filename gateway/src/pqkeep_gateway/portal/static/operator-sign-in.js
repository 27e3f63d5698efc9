// The operators' sign-in page.
import { clearProblems, isComplete, showProblem } from "./fields.js";
import { send } from "./http.js";
import { nextPage } from "./next-page.js";
import { rememberSession } from "./sessions.js";

const form = document.getElementById("operator-sign-in");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearProblems(form);
  if (!isComplete(form)) return;
  const button = form.querySelector("button");
  button.setAttribute("aria-busy", "true");
  try {
    await send("POST", "/api/v1/auth/operator", { operator_key: new FormData(form).get("operator_key").trim() });
    form.reset();
    rememberSession(false); // the service has ended a member's session in this browser
    location.assign(nextPage());
  } catch (error) {
    if (error.status === undefined) throw error;
    showProblem(form, error.message, error.field);
  } finally {
    button.removeAttribute("aria-busy");
  }
});
