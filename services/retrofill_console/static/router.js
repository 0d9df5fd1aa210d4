// Addresses: plain paths, so that a page can be linked, opened in another tab and gone back to.

const subscribers = new Set();

export const here = () => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export function onMove(subscriber) {
  subscribers.add(subscriber);
  return () => subscribers.delete(subscriber);
}

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  moved(!replace);
}

function moved(fresh) {
  for (const subscriber of subscribers) subscriber(here(), fresh);
}

/** Follow links of this page without loading it again; everything else is the browser's. */
export function takeOverLinks() {
  addEventListener("popstate", () => moved(true));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) && event.button === 0;
    if (!link || !plain || link.target || link.origin !== location.origin || link.pathname.startsWith("/api/")) return;
    if (link.hash && link.pathname === location.pathname) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}

/** The values of `:names` in a pattern like /runs/:id, or null. */
export function match(pattern, path) {
  const wanted = pattern.split("/");
  const parts = path.replace(/\/$/, "").split("/");
  if (wanted.length !== parts.length) return null;
  const values = {};
  for (const [n, part] of wanted.entries()) {
    if (part.startsWith(":")) values[part.slice(1)] = decoded(parts[n]);
    else if (part !== parts[n]) return null;
  }
  return Object.values(values).includes(null) ? null : values;
}

/** Null for half an escape, which no link of ours has. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}
