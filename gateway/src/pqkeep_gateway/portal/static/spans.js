/** A number and what there is of it: "1 byte". */
export const many = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;

// How long something is, as the service says it: see span in rendering.py.
export function span(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (!hours) return minutes ? `${minutes} min` : `${seconds} s`;
  return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
}
