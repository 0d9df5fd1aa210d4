// Mounts the real grid with made-up intervals, and measures it. Imported by browser.py.

import { html, render } from "/static/vendor/preact.js";
import { GridData } from "/static/grid/data.js";
import { Grid } from "/static/grid/grid.js";
import { arrange } from "/static/grid/layout.js";
import { paint, palette } from "/static/grid/paint.js";

const LETTERS = { q: "queued", r: "running", s: "succeeded", f: "failed", c: "cancelled" };
let data = null;

function show(version) {
  const describe = (n) => ({ title: String(n), lines: [] });
  render(html`<${Grid} data=${data} version=${version} label="test" describe=${describe} />`, document.getElementById("app"));
}

function made(count) {
  const starts = Array.from({ length: count }, (_, n) => 1356998400 + n * 3600);
  return {
    starts, end: starts[count - 1] + 3600, letters: LETTERS, timezone: "Europe/Berlin",
    states: Array.from(starts, (_, n) => "ssssssfsscrqqq"[n % 14]).join(""),
    runs: starts.map((_, n) => n + 1),
    attempts: starts.map((_, n) => n % 3),
    batches: starts.map((_, n) => 1 + Math.floor(n / 7)),
  };
}

/** Milliseconds from the API's answer to pixels. */
export async function mount(count) {
  const sent = made(count);
  const began = performance.now();
  data = new GridData(sent);
  show(0);
  while (!drawn()) await new Promise(requestAnimationFrame);
  return performance.now() - began;
}

function drawn() {
  const canvas = document.querySelector("canvas");
  return canvas?.width > 300 && canvas.getContext("2d").getImageData(0, 40, 200, 1).data.some(Boolean);
}

/** Milliseconds of one drawing of what is visible, with its pixels waited for. */
export function draw(times) {
  const layout = arrange(data.starts, data.timezone);
  const context = Object.assign(document.createElement("canvas"), { width: 1280, height: 320 }).getContext("2d");
  const colors = palette();
  const view = { width: 1280, height: 320, size: 12, hover: -1, selection: [100, 400] };
  const began = performance.now();
  for (let n = 0; n < times; n += 1) paint(context, colors, data, layout, { ...view, scroll: n * 40, focus: n });
  context.getImageData(0, 0, 1, 1);
  return (performance.now() - began) / times;
}

/** Milliseconds between frames while the box scrolls through all of it, and while cells change in each: the medians. */
export async function pan(frames) {
  const box = document.querySelector(".grid-box");
  const step = (box.scrollWidth - box.clientWidth) / frames;
  return medianFrame(frames, (n) => { box.scrollLeft = n * step; });
}

export async function fill(frames) {
  return medianFrame(frames, (n) => {
    for (let k = 0; k < 100; k += 1) {
      data.apply({ run_id: 1 + ((n * 100 + k) % data.length), run_state: n % 2 ? "succeeded" : "running" });
    }
    show(n + 1);
  });
}

async function medianFrame(frames, change) {
  const times = [];
  let last = await new Promise(requestAnimationFrame);
  for (let n = 0; n < frames; n += 1) {
    change(n);
    const at = await new Promise(requestAnimationFrame);
    times.push(at - last);
    last = at;
  }
  return times.sort((a, b) => a - b)[frames >> 1];
}
