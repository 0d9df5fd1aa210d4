// Local time without asking the browser for each of 100,000 moments: only for a few, and where clocks change.

import { offsetAt } from "../lib/format.js";

const WEEK = 7 * 86400;

/** A function from a moment (seconds since 1970) in [from, to] to local seconds in `zone`. */
export function localClock(zone, from, to) {
  const changes = [];
  let known = offsetAt(from, zone);
  const first = known;
  for (let at = from; at < to; ) {
    const next = Math.min(at + WEEK, to);
    const offset = offsetAt(next, zone);
    if (offset !== known) changes.push({ at: changeWithin(at, next, known, zone), offset });
    known = offset;
    at = next;
  }
  if (changes.length === 0) return (seconds) => seconds + first;
  let n = -1; // the change in force; moments mostly come in order
  return (seconds) => {
    while (n >= 0 && seconds < changes[n].at) n -= 1;
    while (n + 1 < changes.length && seconds >= changes[n + 1].at) n += 1;
    return seconds + (n < 0 ? first : changes[n].offset);
  };
}

/** The first whole second in (low, high] at which the offset is not `before`. */
function changeWithin(low, high, before, zone) {
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (offsetAt(middle, zone) === before) low = middle;
    else high = middle;
  }
  return high;
}
