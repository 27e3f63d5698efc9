/** A number with its noun: "1 byte". */
export const many = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;

/** A duration, in the same form as span() in rendering.py: "1 h 5 min". */
export function span(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (!hours) return minutes ? `${minutes} min` : `${seconds} s`;
  return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
}
