// Try it: sends texts and files as requests, and shows the results or saves them as files.
import { download, fromBase64, textOf, toBase64 } from "./bytes.js";
import { bodyOf, showProblem } from "./fields.js";
import { language, t } from "./languages.js";
import { many } from "./spans.js";

const OUTPUT = { encrypt: "ciphertext", decrypt: "plaintext", sign: "signature", compute_mac: "mac" };
const MOST_SHOWN = 20_000; // characters
const MOST_IN_CODE = 8_192;
const MOST_IN_BODY = 48;
const files = new WeakMap(); // bytes by field
const outputs = new WeakMap(); // bytes by result

/** The base64 of a field's text or file. Raises RangeError if it is too large. */
function contentOf(field) {
  const file = files.get(field);
  const text = field.querySelector("textarea").value;
  const most = Number(field.dataset.most);
  const isBase64 = field.dataset.kind === "base64" && !file;
  const bytes = file ?? new TextEncoder().encode(isBase64 ? "" : text);
  const base64 = isBase64 ? text.replace(/\s/g, "") : toBase64(bytes.subarray(0, most));
  if (bytes.length > most || base64.length > (most * 4) / 3 + 4) {
    throw new RangeError(t`This text is larger than ${most / 1024} KiB.`);
  }
  return base64;
}

for (const field of document.querySelectorAll("[data-content]")) {
  const input = field.querySelector("[type=file]");
  const area = field.querySelector("textarea");
  const chosen = field.querySelector("[data-chosen]");
  const back = field.querySelector("[data-no-file]");
  const hint = chosen.textContent;
  const drop = () => {
    files.delete(field);
    input.value = "";
    chosen.textContent = hint;
    back.hidden = true;
    area.disabled = false;
  };
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (!file) return;
    const problem = field.querySelector("[data-problem]");
    problem.hidden = file.size <= Number(field.dataset.most);
    if (!problem.hidden) {
      problem.textContent = t`This file is larger than ${Number(field.dataset.most) / 1024} KiB.`;
      input.value = "";
      return;
    }
    files.set(field, new Uint8Array(await file.arrayBuffer()));
    chosen.textContent = `${file.name}, ${many(file.size, "byte")}`;
    back.hidden = false;
    area.disabled = true;
  });
  back.addEventListener("click", () => {
    drop();
    area.focus();
  });
}

// In the capture phase, before forms.js reads the form: sets the fields for the request.
document.addEventListener(
  "submit",
  (event) => {
    const form = event.target;
    if (!form.closest("[data-pair]")) return;
    const [algorithm, version = ""] = form.elements.namedItem("key").value.split(":");
    form.elements.namedItem("algorithm").value = algorithm;
    form.elements.namedItem("key_version").value = version;
    for (const field of form.querySelectorAll("[data-content]")) {
      try {
        form.elements.namedItem(field.dataset.content).value = contentOf(field);
      } catch (error) {
        event.preventDefault();
        event.stopPropagation();
        return showProblem(form, error.message, field.dataset.content);
      }
    }
    showRequest(form);
  },
  true,
);

function showRequest(form) {
  const box = form.closest("[data-pair]").querySelector("[data-request]");
  const body = bodyOf(form);
  const contents = [...form.querySelectorAll("[data-content]")].map((field) => body[field.dataset.content] ?? "");
  const values = { ALGORITHM: body.algorithm, 424242: String(body.key_version), AAEC: contents[0], AAED: contents[1] };
  const names = new RegExp(Object.keys(values).join("|"), "g");
  for (const place of box.querySelectorAll("[data-template]")) {
    const filled = place.dataset.template.replace(names, (name) => shortened(values[name], MOST_IN_CODE));
    place.querySelector("code").textContent = filled;
  }
  const isText = (value) => typeof value === "string";
  const short = Object.entries(body).map(([name, value]) => [name, isText(value) ? shortened(value, MOST_IN_BODY) : value]);
  box.querySelector("[data-body]").textContent = JSON.stringify(Object.fromEntries(short), null, 2);
  box.hidden = false;
}

function shortened(text, most) {
  if (text.length <= most) return text;
  return t`${text.slice(0, 20)}… ${text.length.toLocaleString(language)} characters …${text.slice(-8)}`;
}

document.addEventListener("responded", (event) => {
  const operation = event.target.dataset.operation;
  const result = document.querySelector(`[data-result-of="${operation}"]`);
  if (!result) return;
  const valid = result.querySelector("[data-valid]");
  if (valid) {
    valid.hidden = !event.detail.valid;
    result.querySelector("[data-invalid]").hidden = event.detail.valid;
    return;
  }
  const base64 = event.detail[OUTPUT[operation]];
  const bytes = fromBase64(base64);
  outputs.set(result, { bytes, base64, ...event.detail });
  const text = operation === "decrypt" ? textOf(bytes) : base64;
  const output = result.querySelector("[data-output]");
  output.hidden = text === null || text.length > MOST_SHOWN;
  output.querySelector("code").textContent = output.hidden ? "" : text;
  result.querySelector("[data-about]").textContent =
    t`${many(bytes.length, "byte")}, by version ${event.detail.key_version} of ${event.detail.algorithm}` +
    (text === null ? t`. They are not text. Download them.` : output.hidden ? t`. Too large to show. Download them.` : "");
  result.querySelector("[data-shown]").hidden = false;
});

// Hides the result of a verification when its input changes.
document.addEventListener("input", (event) => {
  for (const verdict of event.target.closest("[data-pair]")?.querySelectorAll("[data-valid], [data-invalid]") ?? []) {
    verdict.hidden = true;
  }
});

document.addEventListener("click", (event) => {
  const saver = event.target.closest("[data-save]");
  if (saver) download(saver.dataset.save, outputs.get(saver.closest(".result")).bytes);
  const goer = event.target.closest("[data-go-on]");
  if (goer) goOn(goer.closest("[data-pair]"), outputs.get(goer.closest(".result")));
});

/** Copies an operation's output and input into the second form. */
function goOn(first, output) {
  const second = document.querySelector('[data-pair="second"] form');
  for (const field of second.querySelectorAll("[data-content]")) {
    const name = field.dataset.content;
    const source = first.querySelector(`[data-content="${name}"]`);
    field.querySelector("[data-no-file]").click();
    if (!source) put(field, output.bytes, output.base64, t`the output, ${many(output.bytes.length, "byte")}`);
    else if (files.has(source)) put(field, files.get(source), null, source.querySelector("[data-chosen]").textContent);
    else field.querySelector("textarea").value = source.querySelector("textarea").value;
  }
  const key = `${output.algorithm}:${output.key_version}`;
  const select = second.elements.namedItem("key");
  if (![...select.options].some((option) => option.value === key)) select.add(new Option(key.replace(":", ` · ${t`version`} `), key));
  select.value = key;
  second.querySelector("button:not([type=button])").focus();
}

/** Fills a field with a text. A long text, or bytes, are set like a chosen file. */
function put(field, bytes, text, name) {
  const area = field.querySelector("textarea");
  if (text !== null && text.length <= MOST_SHOWN) {
    area.value = text;
    return;
  }
  files.set(field, bytes);
  field.querySelector("[data-chosen]").textContent = name;
  field.querySelector("[data-no-file]").hidden = false;
  area.disabled = true;
}
