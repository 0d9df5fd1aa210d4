// Whether moments are shown as how long ago they were, or exactly: a choice of the viewer, kept in the browser.

import { useEffect, useReducer } from "../vendor/preact.js";

const KEY = "retrofill.exact-times";
const TICK_MS = 10_000;
const showing = new Set();

export const exact = () => globalThis.localStorage?.getItem(KEY) === "yes";

export function showExact(yes) {
  localStorage.setItem(KEY, yes ? "yes" : "no");
  renderAll();
}

function renderAll() {
  for (const render of showing) render();
}

setInterval(renderAll, TICK_MS);

/** Render again now and then, and when the choice changes. Returns whether exact times are shown. */
export function useTimes() {
  const [, render] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    showing.add(render);
    return () => showing.delete(render);
  }, []);
  return exact();
}
