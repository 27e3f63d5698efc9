// Sets an authenticator app up: the secret, a first code, the recovery codes.
import { call } from "./calls.js";
import { Cancelled, hold, release } from "./dialogs.js";

const parts = Object.fromEntries([...document.querySelectorAll("[data-enroll]")].map((each) => [each.dataset.enroll, each]));
const root = document.body.dataset.root;

function show(name) {
  for (const [each, part] of Object.entries(parts)) part.hidden = each !== name;
}

/** The address of an SVG that came as a data: address, which the page's policy does not load. */
function imageOf(data) {
  const text = decodeURIComponent(data.slice(data.indexOf(",") + 1));
  return URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
}

document.getElementById("begin")?.addEventListener("click", async () => {
  const problem = parts.begin.querySelector(".form-error");
  problem.textContent = "";
  try {
    const { secret, qr_svg: qr } = await call("POST", "/api/v1/auth/mfa/enroll");
    document.getElementById("qr").src = imageOf(qr);
    parts.scan.querySelector("[data-result=secret]").textContent = secret;
    show("scan");
    parts.scan.querySelector("input").focus();
  } catch (error) {
    if (!(error instanceof Cancelled)) problem.textContent = error.message;
  }
});

parts.scan?.addEventListener("answered", (event) => {
  const codes = event.detail.recovery_codes.join("\n");
  parts.codes.querySelector("[data-codes]").textContent = codes;
  document.getElementById("download").href = URL.createObjectURL(new Blob([`${codes}\n`], { type: "text/plain" }));
  hold(parts.codes);
  show("codes");
  parts.codes.focus();
});

document.getElementById("saved")?.addEventListener("change", (event) => {
  document.getElementById("done").disabled = !event.target.checked;
});
document.getElementById("done")?.addEventListener("click", () => {
  release(parts.codes);
  location.assign(`${root}/security`);
});
