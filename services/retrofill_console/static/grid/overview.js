// All of a grid that does not fit, as a strip: where it failed, how far it is, and what part is in view.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { colorOf, RUN_STATES } from "../lib/states.js";

const HEIGHT = 24;
// A single failed run among thousands is still seen.
const LEAST = 2;
const WORST_FIRST = ["failed", "cancelled", "running", "publishing", "staged", "starting", "succeeded", "queued", "skipped"];

/** How many intervals of each color are in each of `width` slices of the columns: pure. */
export function slices(data, layout, width) {
  const kinds = data.names.map((name) => RUN_STATES.indexOf(colorOf(name)));
  const counts = RUN_STATES.map(() => new Uint32Array(width));
  for (let n = 0; n < data.length; n += 1) {
    counts[kinds[data.codes[n]]][Math.floor((layout.column[n] * width) / layout.columns)] += 1;
  }
  return Object.fromEntries(RUN_STATES.map((state, n) => [state, counts[n]]));
}

/** @param scroll {left, width} of the box in cells' pixels; onJump(left) */
export function Overview({ data, layout, version, width, size, colors, scroll, onJump }) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    const scale = devicePixelRatio;
    Object.assign(canvas.current, { width: Math.round(width * scale), height: HEIGHT * scale });
    const context = canvas.current.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    draw(context, colors, slices(data, layout, width), width);
  }, [data, version, width, colors]);

  const total = layout.columns * size;
  const jump = (event) => {
    if (event.buttons !== 1) return;
    const at = (event.clientX - event.currentTarget.getBoundingClientRect().left) / width;
    onJump(at * total - scroll.width / 2);
  };
  const style = { left: `${(scroll.left / total) * width}px`, width: `${Math.max(6, (scroll.width / total) * width)}px` };
  return html`
    <div class="overview" aria-hidden="true" onPointerDown=${jump} onPointerMove=${jump}>
      <canvas ref=${canvas} style=${{ width: `${width}px`, height: `${HEIGHT}px` }}></canvas>
      <i style=${style}></i>
    </div>`;
}

function draw(context, colors, counts, width) {
  context.clearRect(0, 0, width, HEIGHT);
  for (let x = 0; x < width; x += 1) {
    const all = RUN_STATES.reduce((sum, state) => sum + counts[state][x], 0);
    let y = 0;
    for (const state of WORST_FIRST) {
      if (!counts[state][x]) continue;
      const least = state === "failed" || state === "running" ? LEAST : 0;
      const height = Math.max(least, (counts[state][x] / all) * HEIGHT);
      context.fillStyle = colors.states[state];
      context.fillRect(x, y, 1, Math.min(height, HEIGHT - y));
      y += height;
    }
  }
}
