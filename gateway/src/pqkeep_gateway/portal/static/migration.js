// Migration: saves the bill of materials. It is in parts if there are many keys.
import { download } from "./bytes.js";
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { toast } from "./toasts.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-cbom]");
  if (!button) return;
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  try {
    let after = "";
    for (let part = 1; part === 1 || after; part += 1) {
      const query = new URLSearchParams({ version: button.dataset.cbom, ...(after && { after }) });
      const made = await call("GET", `/api/v1/inventory/cbom?${query}`);
      const name = part === 1 ? "cbom.json" : `cbom.${part}.json`;
      download(name, new TextEncoder().encode(`${JSON.stringify(made.cbom, null, 2)}\n`));
      after = made.next ?? "";
    }
  } catch (error) {
    if (!(error instanceof Cancelled)) toast(error.message);
  } finally {
    button.removeAttribute("aria-busy");
    button.disabled = false;
  }
});
