// How moments, durations and numbers are written. The same as the command line does.

import { wordOf } from "./states.js";

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

const DAY = "2024-01-01".length;
const dayOf = (at, zone) => instant(at, zone).slice(0, DAY);

/** Whether a day begins: not always at midnight, which clocks may skip. */
const beginsDay = (at, zone) => dayOf(at, zone) !== dayOf(at - 1, zone);

/** To the minute or second, with its offset if clocks show that time twice. */
function clockAt(at, zone, withSeconds) {
  const text = instant(at, zone).slice(DAY + 1, withSeconds ? undefined : -":00".length);
  const offset = offsetAt(at, zone);
  const twice = [at - 86_400, at + 86_400].some((near) => {
    const other = offsetAt(near, zone);
    return other !== offset && offsetAt(at + offset - other, zone) === other;
  });
  return twice ? text + offsetText(offset) : text;
}

function offsetText(offset) {
  const minutes = Math.abs(Math.trunc(offset / 60));
  const two = (value) => String(value).padStart(2, "0");
  return `${offset < 0 ? "-" : "+"}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
}

/** A logical date: as short as it can be; the beginning of a day is that day. */
export function moment(value, zone = "UTC") {
  if (value == null) return "–";
  const at = seconds(value);
  return beginsDay(at, zone) ? dayOf(at, zone) : `${dayOf(at, zone)} ${clockAt(at, zone, at % 60 !== 0)}`;
}

/**
 * The range [start, end) with both ends included, as requests name it and as the command line writes it: whole days as days
 * (`2024-01-01 – 2024-01-31`), all else to the minute (`2024-01-01 05:00 – 10:59`).
 */
export function range(start, end, zone = "UTC") {
  const [first, after] = [seconds(start), seconds(end)];
  const last = after - 1;
  const [firstDay, lastDay] = [dayOf(first, zone), dayOf(last, zone)];
  if (beginsDay(first, zone) && beginsDay(after, zone)) return firstDay === lastDay ? firstDay : `${firstDay} – ${lastDay}`;
  const withSeconds = first % 60 !== 0 || after % 60 !== 0;
  const [from, to] = [clockAt(first, zone, withSeconds), clockAt(last, zone, withSeconds)];
  if (firstDay !== lastDay) return `${firstDay} ${from} – ${lastDay} ${to}`;
  return from === to ? `${firstDay} ${from}` : `${firstDay} ${from} – ${to}`;
}

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

// Of moments further away, the day says more.
const MONTH = 30 * 86_400;

/** `4 min ago`, `in 2 h`, `2024-01-31`. */
export function relative(value, now = Date.now()) {
  const age = (now - Date.parse(value)) / 1000;
  const far = Math.floor(Math.abs(age));
  if (far > MONTH) return instant(value).slice(0, DAY);
  if (far < 1) return "now";
  const text = far < 10 ? `${far} s` : duration(far).split(" ").slice(0, 2).join(" ");
  return age < 0 ? `in ${text}` : `${text} ago`;
}

export const number = (value) => (value == null ? "–" : value.toLocaleString("en-US"));

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** `3 failed, 10 succeeded`. */
export function counts(byName) {
  const there = Object.entries(byName ?? {}).filter(([, count]) => count);
  return there.sort().map(([name, count]) => `${number(count)} ${wordOf(name)}`).join(", ") || "none";
}
