// The sign-in page.
import { nextPage } from "./next-page.js";
import { wireSignIn } from "./sign-in.js";

wireSignIn(document, () => location.assign(nextPage()));
