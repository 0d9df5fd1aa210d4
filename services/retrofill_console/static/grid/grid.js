// The grid of a backfill's intervals: a canvas that draws what is visible of a calendar, and how it is used.
//
// The box scrolls as any box does; only the canvas in it stays in place and is drawn anew.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { arrange, fittingSize, neighbor, SIZES } from "./layout.js";
import { Overview } from "./overview.js";
import { paint, palette, TOP } from "./paint.js";
import { Pointer } from "./pointer.js";

const HEIGHT = 620; // beyond it, cells get smaller
const KEYS = {
  ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", n: "next", p: "previous",
};

/**
 * @param data a GridData; `version` changes when it does
 * @param describe (index) => {title, lines: string[]}, for the hovered or focused interval
 * @param onOpen (index), for a click or Enter
 * @param latest whether the end is shown first, unless something is under way
 * @param selection [from, to] inclusive or null; onSelect(selection)
 */
export function Grid({ data, version, label, describe, onOpen, selection = null, onSelect, latest = false }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const [width, setWidth] = useState(0);
  const [zoom, setZoom] = useState(null);
  const [hover, setHover] = useState(-1);
  const [focus, setFocus] = useState(-1);
  const [focused, setFocused] = useState(false);
  const [left, setLeft] = useState(0);
  const anchor = useRef(-1);
  const layout = useMemo(() => arrange(data.starts, data.timezone), [data]);
  const size = zoom ?? fittingSize(layout, width || 900, HEIGHT);
  const height = TOP + layout.rows * size;
  const colors = useColors();

  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  const view = { width, height, size, hover, focus: focused ? focus : -1, selection };
  const painter = useRef(null);
  painter.current = () => {
    if (width === 0) return;
    fit(canvas.current, width, height);
    const context = canvas.current.getContext("2d");
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    paint(context, colors, data, layout, { ...view, scroll: box.current.scrollLeft });
  };
  const frame = useRef(0);
  const repaint = () => {
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      painter.current();
    });
  };
  useLayoutEffect(() => painter.current(), [data, version, width, size, hover, focus, focused, selection, colors]);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  const large = layout.columns * size > width;
  const scrolled = () => {
    repaint();
    if (large) setLeft(box.current.scrollLeft);
  };

  useEffect(() => {
    // What is under way is what one came to see.
    const under = Math.max(data.codes.indexOf(data.names.indexOf("running")), data.codes.indexOf(data.names.indexOf("starting")));
    if (under > 0) reveal(box.current, layout.column[under] * size, size);
    else if (latest) box.current.scrollLeft = box.current.scrollWidth;
  }, [data, width > 0]);

  const moveTo = (index, extend) => {
    if (extend && onSelect) {
      if (anchor.current < 0) anchor.current = Math.max(focus, 0);
      onSelect(ordered(anchor.current, index));
    } else anchor.current = -1;
    setFocus(index);
    reveal(box.current, layout.column[index] * size, size);
  };

  const keydown = (event) => {
    const current = Math.max(focus, 0);
    const direction = KEYS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (direction) moveTo(neighbor(layout, current, direction), event.shiftKey);
    else if (event.key === "Home") moveTo(0, event.shiftKey);
    else if (event.key === "End") moveTo(data.length - 1, event.shiftKey);
    else if (event.key === "Enter" && focus >= 0) onOpen?.(focus);
    else if (event.key === "Escape" && selection) onSelect?.(null);
    else if (event.key === "+" || event.key === "-") setZoom(otherSize(size, event.key === "+" ? 1 : -1));
    else return;
    event.preventDefault();
  };

  const pointer = useMemo(() => new Pointer(), []);
  pointer.to = { layout, size, canvas, box, setHover, setFocus, onOpen, anchor, onSelect };

  const shown = focused && focus >= 0 ? focus : hover;
  const said = focused && focus >= 0 ? describe(focus) : null;
  return html`
    <div class="grid">
      <div class="grid-rows" aria-hidden="true" style=${{ height: `${height}px` }}>
        ${rowLabels(layout, size).map(({ row, text }) => html`<span key=${row} style=${{ top: `${TOP + row * size + size / 2}px` }}>${text}</span>`)}
      </div>
      <div class="grid-frame">
        <div
          class="grid-box" ref=${box} tabindex="0" role="application" aria-roledescription="calendar of intervals"
          aria-label=${`${label}. Arrow keys move, Shift and arrows select, Enter opens the run. The same as a table is below.`}
          onScroll=${scrolled} onKeyDown=${keydown}
          onFocus=${() => { setFocused(true); if (focus < 0) setFocus(0); }} onBlur=${() => setFocused(false)}
          onPointerDown=${pointer.down} onPointerMove=${pointer.move} onPointerUp=${pointer.up} onPointerLeave=${pointer.leave}
        >
          <div class="grid-space" style=${{ width: `${layout.columns * size}px`, height: `${height}px` }}>
            <canvas ref=${canvas} style=${{ width: `${width}px`, height: `${height}px` }}></canvas>
          </div>
        </div>
        ${large && width > 0 && html`<${Overview} data=${data} layout=${layout} version=${version} width=${width} size=${size} colors=${colors}
          scroll=${{ left, width }} onJump=${(to) => { box.current.scrollLeft = to; }} />`}
        ${shown >= 0 && html`<${Hint} box=${box} layout=${layout} size=${size} index=${shown} text=${describe(shown)} />`}
      </div>
      <div class="grid-zoom">
        <button type="button" class="icon" aria-label="Smaller cells" disabled=${size === SIZES[0]} onClick=${() => setZoom(otherSize(size, -1))}>−</button>
        <button type="button" class="icon" aria-label="Larger cells" disabled=${size === SIZES[SIZES.length - 1]} onClick=${() => setZoom(otherSize(size, 1))}>+</button>
      </div>
      <p class="unseen" aria-live="polite">${said && `${said.title}: ${said.lines.join(", ")}`}</p>
    </div>`;
}

/** A text near the cell, inside the frame. */
function Hint({ box, layout, size, index, text }) {
  const at = layout.column[index] * size - (box.current?.scrollLeft ?? 0);
  const wide = box.current?.clientWidth ?? 0;
  const toLeft = at > wide / 2;
  const style = {
    top: `${TOP + (layout.row[index] + 1) * size + 4}px`,
    [toLeft ? "right" : "left"]: `${Math.max(0, toLeft ? wide - at - size : at)}px`,
  };
  return html`
    <div class="hint" style=${style} aria-hidden="true">
      <strong>${text.title}</strong>
      ${text.lines.map((line) => html`<span key=${line}>${line}</span>`)}
    </div>`;
}

function useColors() {
  const [colors, setColors] = useState(palette);
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setColors(palette());
    scheme.addEventListener("change", change);
    return () => scheme.removeEventListener("change", change);
  }, []);
  return colors;
}

function fit(canvas, width, height) {
  const [w, h] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
}

function reveal(box, x, size) {
  const margin = size * 3;
  if (x < box.scrollLeft + margin) box.scrollLeft = Math.max(0, x - margin);
  else if (x + size + margin > box.scrollLeft + box.clientWidth) box.scrollLeft = x + size + margin - box.clientWidth;
}

/** As many labels as have room. */
function rowLabels(layout, size) {
  const every = [1, 2, 3, 4, 6, 10, 12, 15, 24, 30].find((n) => n * size >= 15) ?? 48;
  return layout.rowLabels.filter((_, n) => n % every === 0);
}

const otherSize = (size, by) => SIZES[Math.min(SIZES.length - 1, Math.max(0, SIZES.indexOf(size) + by))];
export const ordered = (a, b) => [Math.min(a, b), Math.max(a, b)];
