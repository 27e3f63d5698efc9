// The page to open after sign-in: the requested one, if it is in the portal. Else the overview.
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
