// Draws cells on a canvas. A state has a color and a mark, so that it is told without colors too.

import { COLORED, colorOf } from "../lib/states.js";
import { within } from "./layout.js";

export const TOP = 20; // the height of the labels of columns

/** Colors of the page's scheme, as custom properties define them. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    states: Object.fromEntries(COLORED.map((state) => [state, read(`--state-${state}`)])),
    mark: read("--state-mark"),
    text: read("--text"),
    muted: read("--muted"),
    accent: read("--accent"),
    selection: read("--selection"),
    font: `11px ${style.getPropertyValue("--font")}`,
  };
}

/** Draw one cell with its mark. Also the swatches of legends. */
export function drawCell(context, colors, state, x, y, width, height) {
  const color = colorOf(state);
  context.fillStyle = colors.states[color];
  if (color === "skipped") {
    const side = Math.max(1, Math.round(Math.min(width, height) / 4));
    context.fillRect(x + Math.floor((width - side) / 2), y + Math.floor((height - side) / 2), side, side);
    return;
  }
  context.fillRect(x, y, width, height);
  if (width >= 5 && height >= 5) MARKS[color]?.(context, colors, x, y, width, height);
}

const lines = (draw) => (context, colors, x, y, width, height) => {
  context.strokeStyle = colors.mark;
  context.lineWidth = Math.max(1, Math.min(width, height) / 8);
  context.beginPath();
  draw(context, x, y, width, height, Math.min(width, height) * 0.28);
  context.stroke();
};

const inner = (share) => (context, colors, x, y, width, height) => {
  context.fillStyle = colors.mark;
  const [w, h] = [Math.max(2, Math.round(width * share)), Math.max(2, Math.round(height * share))];
  context.fillRect(x + Math.round((width - w) / 2), y + Math.round((height - h) / 2), w, h);
};

const MARKS = {
  failed: lines((c, x, y, w, h, inset) => {
    c.moveTo(x + inset, y + inset);
    c.lineTo(x + w - inset, y + h - inset);
    c.moveTo(x + w - inset, y + inset);
    c.lineTo(x + inset, y + h - inset);
  }),
  cancelled: lines((c, x, y, w, h, inset) => {
    c.moveTo(x + inset, y + h / 2);
    c.lineTo(x + w - inset, y + h / 2);
  }),
  running: inner(0.34),
  older: lines((c, x, y, w, h, inset) => {
    c.moveTo(x + w / 2, y + inset);
    c.lineTo(x + w / 2, y + h - inset);
  }),
  publishing: lines((c, x, y, w, h, inset) => {
    c.moveTo(x + inset, y + h * 0.6);
    c.lineTo(x + w / 2, y + inset);
    c.lineTo(x + w - inset, y + h * 0.6);
  }),
  staged: lines((c, x, y, w, h, inset) => {
    c.moveTo(x + inset, y + h - inset);
    c.lineTo(x + w - inset, y + h - inset);
  }),
};

/**
 * Draw what is visible.
 *
 * @param view {scroll, width, height, size, focus: index or -1, hover: index or -1, selection: [from, to] inclusive or null}
 */
export function paint(context, colors, data, layout, view) {
  const { size, scroll, width } = view;
  const gap = size >= 9 ? 2 : size >= 6 ? 1 : 0;
  const from = Math.floor(scroll / size);
  const to = Math.min(layout.columns, Math.ceil((scroll + width) / size) + 1);
  context.clearRect(0, 0, width, view.height);
  drawLabels(context, colors, layout, view, from, to);
  const [first, last] = within(layout, from, to);
  for (let n = first; n < last; n += 1) {
    const box = boxOf(layout, n, size, gap, scroll);
    drawCell(context, colors, data.state(n), box.x, box.y, box.width, box.height);
    if (gap && joined(data, layout, n)) bridge(context, colors, data.state(n), box, gap);
    if (size >= 9 && data.attempts[n] > 1) corner(context, colors, box);
  }
  if (view.selection) drawSelection(context, colors, layout, view, first, last, gap);
  for (const n of new Set([view.hover, view.focus])) if (n >= 0) outline(context, colors, boxOf(layout, n, size, gap, scroll), n === view.focus);
}

function boxOf(layout, n, size, gap, scroll) {
  const side = size - gap;
  const x = layout.column[n] * size - scroll;
  const y = TOP + layout.row[n] * size;
  const half = layout.half[n];
  if (!half) return { x, y, width: side, height: side };
  const width = Math.max(1, Math.floor((side - 1) / 2));
  return { x: half === 2 ? x + side - width : x, y, width, height: side };
}

/** Whether the next interval has the same attempt and is the cell below. */
function joined(data, layout, n) {
  return (
    data.batches[n] > 0 && data.batches[n] === data.batches[n + 1] &&
    layout.column[n] === layout.column[n + 1] && layout.row[n + 1] === layout.row[n] + 1
  );
}

/** A narrow bridge: cells stay apart, and their attempt is seen. */
function bridge(context, colors, state, { x, y, width, height }, gap) {
  const wide = Math.max(2, Math.round(width / 3));
  context.fillStyle = colors.states[colorOf(state)];
  context.fillRect(x + Math.round((width - wide) / 2), y + height, wide, gap);
}

/** It began more than once. */
function corner(context, colors, { x, y, width }) {
  const side = Math.max(3, Math.round(width / 3));
  context.fillStyle = colors.text;
  context.beginPath();
  context.moveTo(x + width - side, y);
  context.lineTo(x + width, y);
  context.lineTo(x + width, y + side);
  context.fill();
}

function drawSelection(context, colors, layout, view, first, last, gap) {
  const [from, to] = view.selection;
  context.fillStyle = colors.selection;
  for (let n = Math.max(first, from); n < Math.min(last, to + 1); n += 1) {
    const { x, y, width, height } = boxOf(layout, n, view.size, gap, view.scroll);
    context.fillRect(x - gap / 2, y - gap / 2, width + gap, height + gap);
  }
}

function outline(context, colors, { x, y, width, height }, strong) {
  context.strokeStyle = strong ? colors.accent : colors.text;
  context.lineWidth = strong ? 2 : 1;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
}

function drawLabels(context, colors, layout, view, from, to) {
  context.font = colors.font;
  context.textBaseline = "alphabetic";
  let free = -Infinity;
  const shown = layout.columnLabels.filter(({ column }) => column >= from - 12 && column <= to);
  const majors = shown.filter((label) => label.major);
  const minors = view.size >= 9 ? shown.filter((label) => !label.major) : [];
  const taken = [];
  for (const label of majors) {
    const x = label.column * view.size - view.scroll;
    const end = x + context.measureText(label.text).width;
    if (x < free) continue;
    draw(label, x, colors.text);
    taken.push([x - 8, end + 8]);
    free = end + 8;
  }
  for (const label of minors) {
    const x = label.column * view.size - view.scroll;
    const end = x + context.measureText(label.text).width;
    if (!taken.some(([a, b]) => x < b && end > a)) draw(label, x, colors.muted);
  }
  function draw({ text }, x, color) {
    context.fillStyle = color;
    context.fillText(text, x, TOP - 7);
  }
}
