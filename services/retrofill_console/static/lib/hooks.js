// What pages have in common: data that stays current, and the title.

import { useCallback, useEffect, useRef, useState } from "../vendor/preact.js";
import { get } from "./api.js";
import { focusOn, listen, watchState } from "./live.js";

// After an event the page is read at once, and then at most this often: a read may cost the database something.
const MIN_MS = 1000;
// After a server did not answer; no event says that it does again.
export const RETRY_MS = 5000;
// A read may take at most this share of the time.
const LOAD = 0.25;

/**
 * The JSON at `path`, read again after live events for which `concerns(event)` is true.
 *
 * Returns {data, error, loading, refresh}. `data` stays while it is read again, and is null for a new path.
 * `every`: also read it this often, in ms.
 */
export function useData(path, { concerns = null, every = 0 } = {}) {
  const [found, setFound] = useState({ path: null, data: null, error: null });
  const reader = useRef(null);
  const matches = useRef(concerns);
  matches.current = concerns;

  useEffect(() => {
    if (path === null) return undefined;
    const mine = (reader.current = new Reader(path, setFound));
    mine.read();
    const unlisten = listen((events) => {
      if (events === null || (matches.current && events.some(matches.current))) mine.soon();
    });
    const timer = every ? setInterval(() => document.hidden || mine.soon(), every) : null;
    return () => {
      unlisten();
      clearInterval(timer);
      mine.stop();
    };
  }, [path, every]);

  const refresh = useCallback(() => reader.current?.soon(), []);
  const current = found.path === path;
  return {
    data: current ? found.data : null,
    error: current ? found.error : null,
    loading: !current,
    refresh,
  };
}

/** Reads one path, never twice at a time. */
class Reader {
  constructor(path, show) {
    this.path = path;
    this.show = show;
    this.timer = null;
    this.reading = false;
    this.stale = false;
    this.notBefore = 0;
    this.control = new AbortController();
  }

  soon() {
    if (this.reading) this.stale = true;
    else if (this.timer === null) this.timer = setTimeout(() => this.read(), Math.max(0, this.notBefore - performance.now()));
  }

  async read() {
    this.timer = null;
    this.reading = true;
    this.stale = false;
    const began = performance.now();
    let next, passes = false;
    try {
      const data = await get(this.path, this.control.signal);
      next = () => ({ path: this.path, data, error: null });
    } catch (error) {
      passes = error.passes;
      // What was there stays readable below the error.
      next = (last) => ({ path: this.path, data: last.path === this.path ? last.data : null, error });
    }
    if (this.control.signal.aborted) return;
    const took = performance.now() - began;
    this.notBefore = performance.now() + Math.max(passes ? RETRY_MS : MIN_MS, took / LOAD);
    this.reading = false;
    this.show(next);
    if (this.stale || passes) this.soon();
  }

  stop() {
    clearTimeout(this.timer);
    this.control.abort();
  }
}

/** The state of the live connection. */
export function useLiveState() {
  const [state, setState] = useState("connecting");
  useEffect(() => watchState(setState), []);
  return state;
}

export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${title} · Retrofill` : "Retrofill";
  }, [title]);
}

/** Hear this backfill's runs live; null: only that those of any moved; undefined: not known yet. */
export function useFocus(backfill) {
  useEffect(() => {
    if (backfill !== undefined) focusOn(backfill);
  }, [backfill]);
}
