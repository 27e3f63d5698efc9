// After a checkout: goes to the payment page, if there is one. Only https addresses are opened.
import { t } from "./languages.js";
import { leaveToast } from "./toasts.js";

document.addEventListener("responded", ({ target, detail }) => {
  if (target.dataset.operation !== "check_out") return;
  const url = detail.checkout_url ? URL.parse(detail.checkout_url) : null;
  if (url?.protocol === "https:") return location.assign(url.href);
  leaveToast(detail.pending ? t`The plan changes once the payment is confirmed.` : t`The plan is changed.`);
  location.reload();
});
