// How moments, durations and numbers are written. The same as the command line does.

const formats = new Map();

function partsOf(seconds, zone) {
  if (!formats.has(zone)) {
    const fields = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
    formats.set(zone, new Intl.DateTimeFormat("en-US", { ...fields, hourCycle: "h23", timeZone: zone, era: "short" }));
  }
  const parts = {};
  for (const { type, value } of formats.get(zone).formatToParts(seconds * 1000)) parts[type] = value;
  return parts;
}

/** Seconds that local time is ahead of UTC at a moment. */
export function offsetAt(seconds, zone) {
  const p = partsOf(seconds, zone);
  return Date.UTC(+p.year, +p.month - 1, +p.day, +p.hour, +p.minute, +p.second) / 1000 - Math.floor(seconds);
}

const seconds = (value) => (typeof value === "number" ? value : Date.parse(value) / 1000);

/** When something happened, to the second. */
export function instant(value, zone = "UTC") {
  if (value == null) return "–";
  const p = partsOf(seconds(value), zone);
  return `${p.year.padStart(4, "0")}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}`;
}

/** A logical date: as short as it can be, midnight as a day. */
export function moment(value, zone = "UTC") {
  return instant(value, zone).replace(/:00$/, "").replace(/ 00:00$/, "");
}

const DAY = "2024-01-01".length;

/** `420 ms`, `2.3 s`, `4 min 10 s`, `3 h 12 min`, `2 d 4 h`. */
export function duration(value) {
  if (value == null) return "–";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  const total = Math.round(value);
  if (total < 60) return `${total} s`;
  const [days, hours, minutes] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return total % 60 ? `${minutes} min ${total % 60} s` : `${minutes} min`;
}

/** The time from one moment to another; none if both were reported together. */
export const between = (from, to) => (from && to && from !== to ? duration((Date.parse(to) - Date.parse(from)) / 1000) : "–");

/** `4 minutes ago`, for moments of which the age matters more than the date. */
export function ago(value, now = Date.now()) {
  const age = (now - Date.parse(value)) / 1000;
  return age < 1 ? "now" : `${duration(Math.floor(age)).split(" ").slice(0, 2).join(" ")} ago`;
}

export const number = (value) => (value == null ? "–" : value.toLocaleString("en-US"));

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** `3 failed, 10 succeeded`. */
export function counts(byName) {
  const there = Object.entries(byName ?? {}).filter(([, count]) => count);
  return there.sort().map(([name, count]) => `${number(count)} ${name}`).join(", ") || "none";
}

/** Of [start, end): whole days as requests name them, `2024-01-01 – 2024-01-31` until 2024-02-01; else its moments. */
export function range(start, end, zone) {
  const [first, after] = [moment(start, zone), moment(end, zone)];
  if (first.length > DAY || after.length > DAY) return `${first} – ${after}`;
  const last = instant(seconds(end) - 1, zone).slice(0, DAY);
  return first === last ? first : `${first} – ${last}`;
}
