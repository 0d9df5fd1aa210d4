// What colors and marks mean, with counts.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { number } from "../lib/format.js";
import { RUN_STATES, wordOf } from "../lib/states.js";
import { drawCell, palette } from "./paint.js";

const SIDE = 12;

export function Legend({ counts, names = {} }) {
  const order = (state) => (RUN_STATES.includes(state) ? RUN_STATES.indexOf(state) : RUN_STATES.length);
  const there = Object.keys(counts).sort((a, b) => order(a) - order(b));
  return html`
    <ul class="legend">
      ${there.map((state) => html`<li key=${state}><${Swatch} state=${state} /><span class="number">${number(counts[state])}</span> ${names[state] ?? wordOf(state)}</li>`)}
    </ul>`;
}

export function Swatch({ state }) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    const draw = () => {
      const scale = devicePixelRatio;
      canvas.current.width = canvas.current.height = SIDE * scale;
      const context = canvas.current.getContext("2d");
      context.setTransform(scale, 0, 0, scale, 0, 0);
      drawCell(context, palette(), state, 0, 0, SIDE, SIDE);
    };
    draw();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => scheme.removeEventListener("change", draw);
  }, [state]);
  return html`<canvas class="swatch" ref=${canvas} aria-hidden="true"></canvas>`;
}
