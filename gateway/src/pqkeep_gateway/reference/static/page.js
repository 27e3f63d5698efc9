/* A page: the language of its examples, which is remembered; copying; its place in the contents. */
const KEY = "pqkeep.language";
const LANGUAGES = ["curl", "python"];
const page = document.documentElement;

function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // where the browser keeps nothing
  }
}

function remember(language) {
  try {
    localStorage.setItem(KEY, language);
  } catch {
    // it is shown on this page all the same
  }
}

function show(language) {
  page.dataset.language = language;
  for (const button of document.querySelectorAll(".languages button")) {
    button.setAttribute("aria-pressed", String(button.value === language));
  }
}

async function copy(button) {
  const examples = [...button.closest("figure").querySelectorAll("pre")];
  const text = examples.find((each) => each.checkVisibility()).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

const contents = document.querySelector("#contents");
const here = contents.querySelector("[aria-current]");
const down = here.offsetTop - contents.offsetTop;
if (down > contents.clientHeight) contents.scrollTop = down - contents.clientHeight / 2;
for (const group of document.querySelectorAll(".languages")) {
  group.hidden = false;
  group.addEventListener("click", ({ target }) => {
    if (target.value) {
      show(target.value);
      remember(target.value);
    }
  });
}
if (navigator.clipboard) {
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", () => copy(button));
  }
}
for (const each of document.querySelectorAll("[data-origin]")) {
  each.textContent = location.origin;
}
const language = remembered();
show(LANGUAGES.includes(language) ? language : LANGUAGES[0]);
