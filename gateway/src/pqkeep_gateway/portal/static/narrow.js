// Filters a table's rows by a text: <input type="search" data-narrows="TABLE">.
import { t } from "./languages.js";

const NONE = t`none`;

document.addEventListener("input", ({ target }) => {
  if (!target.dataset.narrows) return;
  const rows = [...document.getElementById(target.dataset.narrows).tBodies[0].rows];
  const wanted = target.value.trim().toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  const count = rows.filter((row) => !row.hidden).length;
  target.nextElementSibling.textContent = wanted ? t`${count || NONE} of ${rows.length}` : "";
});
