// Sets up an authenticator app: the secret, a first code, the recovery codes.
import { call } from "./calls.js";
import { Cancelled } from "./dialogs.js";
import { showCodes, showPart } from "./recovery-codes.js";

const parts = Object.fromEntries([...document.querySelectorAll("[data-enroll]")].map((part) => [part.dataset.enroll, part]));

/** Converts a data: URL of an SVG to a blob: URL. The page's policy does not allow data: URLs. */
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
    showPart("scan");
    parts.scan.querySelector("input").focus();
  } catch (error) {
    if (!(error instanceof Cancelled)) problem.textContent = error.message;
  }
});

parts.scan?.addEventListener("responded", (event) => showCodes(event.detail.recovery_codes));
