import { language, word } from "./languages.js";

/** A number with its noun: "1 byte". */
export const many = (count, name) => `${count.toLocaleString(language)} ${word(count === 1 ? name : `${name}s`)}`;

/** A duration, in the same form as span() in rendering.py: "1 h 5 min". */
export function span(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (!hours) return minutes ? `${minutes} min` : `${seconds} s`;
  return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
}
