// Short confirmations. leaveToast() keeps one for the next page.
const LEFT = "pqkeep-toast";
const SECONDS = 6;

export function toast(text) {
  const shown = document.createElement("div");
  shown.className = "toast";
  shown.textContent = text;
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), SECONDS * 1000);
}

export function leaveToast(text) {
  if (text) sessionStorage.setItem(LEFT, text);
}

export function showLeftToast() {
  const text = sessionStorage.getItem(LEFT);
  sessionStorage.removeItem(LEFT);
  if (text) toast(text);
}
