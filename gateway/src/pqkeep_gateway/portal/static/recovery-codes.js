// The steps of adding a second factor, and its recovery codes, which are shown only once.
import { hold, release } from "./dialogs.js";

const parts = Object.fromEntries([...document.querySelectorAll("[data-enroll]")].map((part) => [part.dataset.enroll, part]));

export function showPart(name) {
  for (const [key, part] of Object.entries(parts)) part.hidden = key !== name;
}

export function showCodes(listed) {
  const codes = listed.join("\n");
  parts.codes.querySelector("[data-codes]").textContent = codes;
  document.getElementById("download").href = URL.createObjectURL(new Blob([`${codes}\n`], { type: "text/plain" }));
  hold(parts.codes);
  showPart("codes");
  parts.codes.focus();
}

document.getElementById("saved")?.addEventListener("change", (event) => {
  document.getElementById("done").disabled = !event.target.checked;
});
document.getElementById("done")?.addEventListener("click", () => {
  release(parts.codes);
  location.assign(`${document.body.dataset.root}/security`);
});
