// Keys: downloads a public key, and shows the day of a destruction and the code for an algorithm.
import { download, fromBase64 } from "./bytes.js";
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { toast } from "./toasts.js";

const utf8 = (text) => new TextEncoder().encode(text);
const FILES = {
  raw: (key) => ["pub", fromBase64(key)],
  der: (key) => ["der", fromBase64(key)],
  pem: (key) => ["pem", utf8(key)],
  jwk: (key) => ["jwk.json", utf8(`${JSON.stringify(key, null, 2)}\n`)],
  age: (key) => ["age.txt", utf8(`${key}\n`)],
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-format]");
  if (!button) return;
  const { publicKey: path, file } = button.parentElement.dataset;
  const { format } = button.dataset;
  try {
    const [ending, bytes] = FILES[format]((await call("GET", `${path}&format=${format}`)).public_key);
    download(`${file}.${ending}`, bytes);
  } catch (error) {
    if (!(error instanceof Cancelled)) toast(error.message);
  }
});

for (const input of document.querySelectorAll("[data-follow]")) {
  input.addEventListener("change", () => {
    for (const box of document.querySelectorAll("[data-follows]")) {
      for (const code of box.querySelectorAll("code")) {
        code.textContent = code.textContent.replaceAll(`"${box.dataset.follows}"`, `"${input.value}"`);
      }
      box.dataset.follows = input.value;
    }
  });
}

const DAY = 24 * 60 * 60 * 1000;
for (const output of document.querySelectorAll("[data-days-later]")) {
  const field = document.getElementById(output.dataset.daysLater);
  const show = () => {
    const isNumber = /^\d{1,4}$/.test(field.value.trim());
    output.value = isNumber ? new Date(Date.now() + field.value * DAY).toISOString().slice(0, 10) : "…";
  };
  field.addEventListener("input", show);
  show();
}
