// Keeps the data of a backfill's grid current: events change it in place, and now and then it is read again.

import { useEffect, useRef, useState } from "../vendor/preact.js";
import { get } from "../lib/api.js";
import { RETRY_MS } from "../lib/hooks.js";
import { listen } from "../lib/live.js";
import { ACTIVE_BACKFILL } from "../lib/states.js";
import { GridData } from "./data.js";

// Events do not tell that a run got its turn: read all again now and then, the less often the larger it is.
const AGAIN_MS = 4000;
const MS_PER_INTERVAL = 0.3;
const SOON_MS = 500;
// After these, runs have other ids or other attempts.
const OTHER_RUNS = new Set(["RunsRetried", "RunSplit"]);

/** {data: GridData or null, error, version}; `version` rises with each change of the data. */
export function useGrid({ id, state, runs }) {
  const [found, setFound] = useState({ data: null, error: null, version: 0 });
  const reader = useRef(null);

  useEffect(() => {
    const mine = (reader.current = new GridReader(id, (next) => setFound((last) => ({ ...last, ...next, version: last.version + 1 }))));
    mine.read();
    const unlisten = listen((events) => mine.hear(events));
    return () => {
      unlisten();
      mine.stop();
    };
  }, [id]);

  useEffect(() => {
    // Also when the state changed: what the last events did not tell.
    reader.current.soon();
    if (!ACTIVE_BACKFILL.has(state)) return undefined;
    const timer = setInterval(() => document.hidden || reader.current.soon(), Math.max(AGAIN_MS, runs * MS_PER_INTERVAL));
    return () => clearInterval(timer);
  }, [id, state, runs]);
  return found;
}

class GridReader {
  constructor(id, show) {
    this.id = id;
    this.path = `/api/v1/backfills/${encodeURIComponent(id)}/grid`;
    this.show = show;
    this.data = null;
    this.during = []; // events since the reading began, which it may have missed
    this.reading = false;
    this.stale = false;
    this.timer = null;
    this.frame = 0;
    this.control = new AbortController();
  }

  async read() {
    this.timer = null;
    this.reading = true;
    this.stale = false;
    this.during = [];
    try {
      const next = new GridData(await get(this.path, this.control.signal));
      for (const event of this.during) next.apply(event);
      if (this.data?.sameAs(next)) this.data.take(next);
      else this.data = next;
      this.show({ data: this.data, error: null });
    } catch (error) {
      if (error.name !== "AbortError") this.show({ error });
      if (error.passes) this.timer = setTimeout(() => this.read(), RETRY_MS);
    }
    this.reading = false;
    if (this.stale && !this.control.signal.aborted) this.soon();
  }

  soon() {
    if (this.reading) this.stale = true;
    else this.timer ??= setTimeout(() => this.read(), SOON_MS);
  }

  hear(events) {
    const mine = (events ?? []).filter((event) => event.backfill_id === this.id);
    if (events === null || mine.some((event) => OTHER_RUNS.has(event.type))) this.soon();
    if (this.reading) this.during.push(...mine);
    const changed = mine.filter((event) => this.data?.apply(event)).length > 0;
    if (changed) this.frame ||= requestAnimationFrame(() => this.shown());
  }

  shown() {
    this.frame = 0;
    this.show({});
  }

  stop() {
    this.control.abort();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
  }
}
