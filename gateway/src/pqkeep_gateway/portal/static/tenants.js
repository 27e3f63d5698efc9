// Opens the page of a new tenant.
import { t } from "./languages.js";
import { leaveToast } from "./toasts.js";

document.addEventListener("responded", ({ target, detail }) => {
  if (target.dataset.operation !== "create_tenant") return;
  leaveToast(t`The tenant is created. Invite its owner.`);
  location.assign(`${document.body.dataset.root}/operator/tenants/${encodeURIComponent(detail.id)}`);
});
