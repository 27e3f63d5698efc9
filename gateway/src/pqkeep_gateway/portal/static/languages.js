// Texts in the page's language. English is in the modules, and each other language has two modules: the portal's
// own texts, and the API's messages, which are loaded with the first error.
export const language = document.documentElement.lang;
const isEnglish = language === "en";
const texts = isEnglish ? {} : (await import(`./texts-${language}.js`)).default;

/** The text of a template literal: t`${count} selected`. The catalogue has it as "{0} selected". */
export function t(parts, ...values) {
  const key = parts.reduce((text, part, index) => `${text}{${index - 1}}${part}`);
  return (texts[key] ?? key).replace(/\{(\d+)\}/g, (_, index) => values[index]);
}

/** The text of a word that the modules know by a variable. */
export const word = (text) => texts[text] ?? text;

/** A message of the API. The values in it are kept. It stays English if the catalogue does not have it. */
export async function said(message) {
  if (isEnglish || !message) return message;
  const { default: messages, patterns } = await import(`./problems-${language}.js`);
  if (message in messages) return messages[message];
  for (const [literals, names, translation] of patterns) {
    const values = valuesIn(message, literals);
    if (values) return translation.replace(/\{(\w+)\}/g, (place, name) => values[names.indexOf(name)] ?? place);
  }
  const [, field, clause] = /^([a-z]+(?:_[a-z]+)*) (.*)$/s.exec(message) ?? [];
  const shown = clause && (await said(clause));
  return shown && shown !== clause ? `${field} ${shown}` : message;
}

/** The values between the literals of a text, or null if it has others. As in languages.py. */
function valuesIn(text, [first, ...rest]) {
  const last = rest.pop();
  if (!text.startsWith(first) || !text.endsWith(last)) return null;
  const end = text.length - last.length;
  let at = first.length;
  const values = [];
  for (const literal of rest) {
    const found = text.indexOf(literal, at);
    if (found < 0 || found + literal.length > end) return null;
    values.push(text.slice(at, found));
    at = found + literal.length;
  }
  return at > end ? null : [...values, text.slice(at, end)];
}
