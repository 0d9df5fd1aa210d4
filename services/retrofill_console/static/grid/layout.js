// Where each interval is on the calendar: pure, no canvas. A column is a week, a day or an hour; rows are
// weekdays, times of day or minutes. Rare intervals (a week or longer) have a row for each year instead.

import { localClock } from "./zone.js";

const DAY = 86400;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
// With more times of day than this, a column is an hour.
const MOST_ROWS = 96;

const two = (value) => String(value).padStart(2, "0");
const dateOf = (local) => new Date(local * 1000);
/** Days since Monday, 1969-12-29. */
const dayOf = (local) => Math.floor(local / DAY) + 3;

/**
 * @param {number[]} starts sorted, in seconds since 1970
 * @returns {{kind, rows, columns, column: Int32Array, row: Int16Array, half: Uint8Array, sorted: boolean,
 *   rowLabels: {row, text}[], columnLabels: {column, text, major}[], find: (column, row) => number}}
 * `half`: 1 and 2 for two intervals at the same local time, where clocks were set back; otherwise 0.
 * `sorted`: whether columns rise with the index. `find`: the index at a place (the earlier half), or -1.
 */
export function arrange(starts, zone) {
  const local = localOf(starts, zone);
  const kind = kindOf(starts, local);
  const placed = PLACED[kind](local);
  const half = halves(placed);
  return { kind, sorted: kind !== "years", ...placed, half, find: finder(placed, half) };
}

function localOf(starts, zone) {
  const clock = localClock(zone, starts[0] ?? 0, starts[starts.length - 1] ?? 0);
  return Float64Array.from(starts, clock);
}

function kindOf(starts, local) {
  let step = Infinity;
  for (let n = 1; n < starts.length; n += 1) step = Math.min(step, starts[n] - starts[n - 1]);
  if (step === Infinity || (step >= 20 * 3600 && step < 6 * DAY)) return "weeks";
  if (step >= 6 * DAY) return "years";
  return distinct(local, DAY).length <= MOST_ROWS ? "days" : "hours";
}

const distinct = (local, unit) => [...new Set(Array.from(local, (each) => each % unit))].sort((a, b) => a - b);

const PLACED = {
  weeks(local) {
    const first = Math.floor(dayOf(local[0] ?? 0) / 7);
    const column = Int32Array.from(local, (each) => Math.floor(dayOf(each) / 7) - first);
    const row = Int16Array.from(local, (each) => dayOf(each) % 7);
    const columns = (column[column.length - 1] ?? 0) + 1;
    const rowLabels = WEEKDAYS.map((text, n) => ({ row: n, text }));
    return { rows: 7, columns, column, row, rowLabels, columnLabels: monthsOfWeeks(first, columns, local) };
  },

  days(local) {
    const times = distinct(local, DAY);
    const rowOf = new Map(times.map((time, n) => [time, n]));
    const first = Math.floor((local[0] ?? 0) / DAY);
    const column = Int32Array.from(local, (each) => Math.floor(each / DAY) - first);
    const row = Int16Array.from(local, (each) => rowOf.get(each % DAY));
    const columns = (column[column.length - 1] ?? 0) + 1;
    const rowLabels = times.map((time, n) => ({ row: n, text: `${two(Math.floor(time / 3600))}:${two(Math.floor(time / 60) % 60)}` }));
    return { rows: times.length, columns, column, row, rowLabels, columnLabels: days(first, columns) };
  },

  hours(local) {
    const first = Math.floor((local[0] ?? 0) / 3600);
    const column = Int32Array.from(local, (each) => Math.floor(each / 3600) - first);
    const row = Int16Array.from(local, (each) => Math.floor((each % 3600) / 60));
    const columns = (column[column.length - 1] ?? 0) + 1;
    const rowLabels = Array.from({ length: 60 }, (_, n) => ({ row: n, text: `:${two(n)}` }));
    return { rows: 60, columns, column, row, rowLabels, columnLabels: hours(first, columns) };
  },

  years(local) {
    const first = dateOf(local[0]).getUTCFullYear();
    const monthly = local.length < 2 || local.every((each, n) => n === 0 || each - local[n - 1] > 27 * DAY);
    const row = Int16Array.from(local, (each) => dateOf(each).getUTCFullYear() - first);
    const column = Int32Array.from(local, (each) => (monthly ? dateOf(each).getUTCMonth() : weekOfYear(each)));
    const rows = row[row.length - 1] + 1;
    const rowLabels = Array.from({ length: rows }, (_, n) => ({ row: n, text: String(first + n) }));
    const columnLabels = MONTHS.map((text, n) => ({ column: monthly ? n : Math.floor((n * 365.25) / 12 / 7), text, major: true }));
    return { rows, columns: monthly ? 12 : 53, column, row, rowLabels, columnLabels };
  },
};

function weekOfYear(local) {
  const year = Date.UTC(dateOf(local).getUTCFullYear(), 0, 1) / 1000;
  return Math.floor((local - year) / (7 * DAY));
}

const monthText = (date, first) => (first || date.getUTCMonth() === 0 ? `${MONTHS[date.getUTCMonth()]} ${date.getUTCFullYear()}` : MONTHS[date.getUTCMonth()]);

/** A label at the first column, and at each week with the first day of a month. */
function monthsOfWeeks(first, columns, local) {
  const labels = [{ column: 0, text: monthText(dateOf(local[0] ?? 0), true), major: true }];
  for (let column = 1; column < columns; column += 1) {
    const sunday = ((first + column) * 7 + 3) * DAY;
    const firstOfMonth = sunday - (dateOf(sunday).getUTCDate() - 1) * DAY;
    if (sunday - firstOfMonth < 7 * DAY && firstOfMonth <= local[local.length - 1]) labels.push({ column, text: monthText(dateOf(sunday), false), major: true });
  }
  return labels;
}

/** The first day of each month, and the days on which a week begins. */
function days(first, columns) {
  const labels = [];
  for (let column = 0; column < columns; column += 1) {
    const date = dateOf((first + column) * DAY);
    const day = date.getUTCDate();
    if (column === 0 || day === 1) labels.push({ column, text: `${monthText(date, column === 0)}${column === 0 && day !== 1 ? ` ${day}` : ""}`, major: true });
    else if (day % 5 === 0 && day < 30) labels.push({ column, text: String(day), major: false });
  }
  return labels;
}

function hours(first, columns) {
  const labels = [];
  for (let column = 0; column < columns; column += 1) {
    const date = dateOf((first + column) * 3600);
    const hour = date.getUTCHours();
    const day = `${MONTHS[date.getUTCMonth()]} ${date.getUTCDate()}`;
    if (column === 0 || hour === 0) labels.push({ column, text: column === 0 ? `${day}, ${two(hour)}:00` : day, major: true });
    else if (hour % 6 === 0) labels.push({ column, text: two(hour), major: false });
  }
  return labels;
}

const placeOf = (column, row, rows) => column * rows + row;

function halves({ column, row, rows }) {
  const half = new Uint8Array(column.length);
  const seen = new Map();
  for (let n = 0; n < column.length; n += 1) {
    const place = placeOf(column[n], row[n], rows);
    if (seen.has(place)) [half[seen.get(place)], half[n]] = [1, 2];
    else seen.set(place, n);
  }
  return half;
}

function finder({ column, row, rows }, half) {
  const at = new Map();
  for (let n = 0; n < column.length; n += 1) if (half[n] !== 2) at.set(placeOf(column[n], row[n], rows), n);
  return (wantedColumn, wantedRow) =>
    wantedRow < 0 || wantedRow >= rows ? -1 : at.get(placeOf(wantedColumn, wantedRow, rows)) ?? -1;
}

/** The first index whose column is at least `wanted`. */
export function firstOf(column, wanted) {
  let [low, high] = [0, column.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The indexes to draw for columns [from, to). */
export function within(layout, from, to) {
  return layout.sorted ? [firstOf(layout.column, from), firstOf(layout.column, to)] : [0, layout.column.length];
}

export const SIZES = [4, 6, 9, 12, 16, 20, 26, 32];

/** The largest size of a cell at which all columns fit into `width` and rows into `height`; else a small, readable one. */
export function fittingSize(layout, width, height) {
  const fits = SIZES.filter((size) => layout.columns * size <= width && layout.rows * size <= height);
  if (fits.length) return fits[fits.length - 1];
  const low = SIZES.filter((size) => layout.rows * size <= height);
  return low.length ? Math.min(12, low[low.length - 1]) : SIZES[0];
}

/** The nearest interval in a direction: "left", "right", "up", "down", "next" or "previous". */
export function neighbor(layout, index, direction) {
  const last = layout.column.length - 1;
  if (direction === "next") return Math.min(last, index + 1);
  if (direction === "previous") return Math.max(0, index - 1);
  const step = { left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1] }[direction];
  let [column, row] = [layout.column[index] + step[0], layout.row[index] + step[1]];
  while (column >= 0 && column < layout.columns && row >= 0 && row < layout.rows) {
    const found = layout.find(column, row);
    if (found >= 0) return found;
    [column, row] = [column + step[0], row + step[1]];
  }
  // At the edge of a column, time goes on in the next one.
  if (step[0] === 0) return neighbor(layout, index, direction === "down" ? "next" : "previous");
  return index;
}
