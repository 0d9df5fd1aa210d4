// Requests to the console's API. A failed one throws Problem with the server's one line.

export class Problem extends Error {
  constructor(message, status, body) {
    super(message);
    this.status = status;
    this.body = body;
  }

  /** Whether the same may be answered later: a server is gone, and comes back. */
  get passes() {
    return this.status === 0 || this.status >= 500;
  }
}

let onLogout = () => {};

/** Call `then` when an answer says that nobody is logged in any more, or `checkLogin` suspects so. */
export const whenLoggedOut = (then) => { onLogout = then; };
export const checkLogin = () => onLogout();

async function answered(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Problem("the console does not answer: is it still running?", 0, {});
  }
  const text = await response.text();
  let body = {};
  try {
    body = text === "" ? {} : JSON.parse(text);
  } catch {
    throw new Problem(`${path}: HTTP ${response.status}, and no JSON`, response.status, {});
  }
  if (response.status === 401 && path !== "/api/v1/login") onLogout();
  if (!response.ok) throw new Problem(body.error ?? `${path}: HTTP ${response.status}`, response.status, body);
  return body;
}

export const get = (path, signal) => answered(path, { signal });

export const post = (path, body = {}, signal) =>
  answered(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });

/** `/path?a=1`, without what is empty. */
export function withQuery(path, values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value != null));
  return query.size ? `${path}?${query}` : path;
}
