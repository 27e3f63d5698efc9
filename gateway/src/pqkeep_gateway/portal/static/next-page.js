// Where to go on: the page that was asked for before, if it is one of the portal's.
export function nextPage() {
  const root = document.body.dataset.root;
  const wanted = new URLSearchParams(location.search).get("next") ?? "";
  let url;
  try {
    url = new URL(wanted, location.origin);
  } catch {
    return root;
  }
  const isOurs = url.origin === location.origin && (url.pathname === root || url.pathname.startsWith(`${root}/`));
  return isOurs && wanted.startsWith("/") ? url.pathname + url.search : root;
}
