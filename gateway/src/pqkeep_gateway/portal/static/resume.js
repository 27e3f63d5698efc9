// Refreshes a session after its access token has expired. Without a session, it goes to the sign-in page.
import { nextPage } from "./next-page.js";
import { refresh } from "./sessions.js";

const next = nextPage();
const goesOn = await refresh().catch(() => false);
location.replace(goesOn ? next : `${document.body.dataset.root}/sign-in?next=${encodeURIComponent(next)}`);
