// Goes on with a session whose access token has expired; without one, to sign in.
import { nextPage } from "./next-page.js";
import { refresh } from "./sessions.js";

const next = nextPage();
const goesOn = await refresh().catch(() => false);
location.replace(goesOn ? next : `${document.body.dataset.root}/sign-in?next=${encodeURIComponent(next)}`);
