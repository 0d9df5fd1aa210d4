// The one store of what is live: a stream of events from the console, shared by all that is on the page.
//
// The browser reconnects by itself and names the last event it saw; the console sends what came since, or
// says that it is too old, and then everything on the page is read again.

import { checkLogin, withQuery } from "./api.js";

// A hidden page lets its connection go after this long; browsers allow only six to one console.
const HIDDEN_MS = 30_000;

const listeners = new Set();
const watchers = new Set();
let source = null;
let hiding = null;
let focus = null;
let state = "connecting";

/**
 * Hear the runs' events of this backfill; of others (null: of all) only that they moved.
 *
 * What a page read before the new stream began may be outdated: it is read again.
 */
export function focusOn(backfill) {
  if (backfill === focus) return;
  focus = backfill;
  if (source === null) return;
  source.close();
  connect(true);
}

/** Call `listener(events)` for each batch of events, and `listener(null)` when all must be read again. */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Call `watcher(state)` now and on changes: connecting, live, lost (no console), kafka (no Kafka behind it) or asleep. */
export function watchState(watcher) {
  watchers.add(watcher);
  watcher(state);
  return () => watchers.delete(watcher);
}

/** Begin; returns what ends it. */
export function start() {
  const turned = () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(disconnect, HIDDEN_MS);
    else if (source === null) connect();
  };
  connect();
  document.addEventListener("visibilitychange", turned);
  return () => {
    document.removeEventListener("visibilitychange", turned);
    clearTimeout(hiding);
    disconnect();
  };
}

function connect(again = state === "asleep") {
  become("connecting");
  source = new EventSource(withQuery("/api/v1/live", { backfill: focus }));
  source.addEventListener("hello", () => {
    become("live");
    if (again) tell(null);
    again = false; // from now on, it sends what was missed
  });
  source.addEventListener("changes", (message) => tell(eventsOf(JSON.parse(message.data))));
  source.addEventListener("reload", () => tell(null));
  source.addEventListener("kafka", (message) => become(JSON.parse(message.data).error ? "kafka" : "live"));
  source.onerror = () => {
    become("lost");
    if (source?.readyState !== EventSource.CLOSED) return;
    // Closed for good (an error instead of a stream, as without a login): the browser does not try again.
    checkLogin();
    setTimeout(reconnect, 3000, source);
  };
}

function reconnect(closed) {
  if (source !== closed) return;
  state = "asleep";
  connect();
}

const eventsOf = ({ events, moved = {} }) => [
  ...events,
  ...Object.keys(moved).map((id) => ({ topic: "run-events", type: "moved", backfill_id: id })),
];

function disconnect() {
  source?.close();
  source = null;
  become("asleep");
}

function become(next) {
  state = next;
  for (const watcher of watchers) watcher(state);
}

function tell(events) {
  for (const listener of [...listeners]) listener(events);
}
