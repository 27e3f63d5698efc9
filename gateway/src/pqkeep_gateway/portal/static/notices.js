// Notes that the visitor has seen the new notices on this page.
import { send } from "./http.js";

const ids = [...document.querySelectorAll("[data-new]")].map((line) => line.dataset.new);
if (ids.length && document.body.dataset.email) {
  try {
    await send("POST", "/api/v1/notices/seen", { ids });
  } catch (error) {
    if (error.status === undefined) throw error; // the notices stay new
  }
}
