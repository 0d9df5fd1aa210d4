// The tasks of a run as a graph, from left to right. The table below it says the same in words.

import { html } from "../vendor/preact.js";
import { between } from "../lib/format.js";
import { colorOf } from "../lib/states.js";

const [WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN] = [168, 44, 44, 14, 4];

/**
 * Columns of tasks: each is right of all that it comes after.
 *
 * @param graph [{name, after: [name]}]
 * @returns Map of name to {column, row}
 */
export function layers(graph) {
  const after = new Map(graph.map((task) => [task.name, task.after ?? []]));
  const columns = new Map();
  const columnOf = (name) => {
    if (!columns.has(name)) {
      columns.set(name, 0); // also ends a circle, which no pipeline has
      columns.set(name, Math.max(-1, ...(after.get(name) ?? []).map(columnOf)) + 1);
    }
    return columns.get(name);
  };
  const filled = [];
  const places = new Map();
  for (const { name } of graph) {
    const column = columnOf(name);
    filled[column] = (filled[column] ?? 0) + 1;
    places.set(name, { column, row: filled[column] - 1 });
  }
  return places;
}

/** `tasks`: the states of one run; without it, the graph of a definition. */
export function Graph({ graph, tasks = null }) {
  if (graph.length < 2) return null;
  const places = layers(graph);
  const at = tasks && new Map(tasks.map((task) => [task.task, task]));
  const box = (name) => {
    const { column, row } = places.get(name);
    return { x: MARGIN + column * (WIDTH + GAP_X), y: MARGIN + row * (HEIGHT + GAP_Y) };
  };
  const all = [...places.keys()].map(box);
  const width = Math.max(...all.map(({ x }) => x)) + WIDTH + MARGIN;
  const height = Math.max(...all.map(({ y }) => y)) + HEIGHT + MARGIN;
  const edges = graph.flatMap((task) => (task.after ?? []).filter((name) => places.has(name)).map((name) => [name, task.name]));
  return html`
    <div class="graph" tabindex="0" role="group" aria-label="Graph of tasks">
      <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${said(graph)}>
        ${edges.map(([from, to]) => html`<path key=${`${from} ${to}`} d=${curve(box(from), box(to))} />`)}
        ${graph.map(({ name, kind }) => html`<${Node} key=${name} name=${name} state=${at?.get(name)?.state ?? "none"} note=${at ? noteOf(at.get(name)) : kind} ...${box(name)} />`)}
      </svg>
    </div>`;
}

function noteOf(task) {
  if (!task) return "not begun";
  const took = between(task.started_at, task.finished_at);
  return task.state.replace("_", " ") + (took === "–" ? "" : `, ${took}`);
}

function Node({ name, state, note, x, y }) {
  return html`
    <g transform=${`translate(${x} ${y})`}>
      <rect class="node" width=${WIDTH} height=${HEIGHT} rx="4" />
      <rect class=${`edge fill ${colorOf(state)}`} width="4" height=${HEIGHT} rx="2" />
      <text class="name" x="14" y="18">${name.length > 22 ? `${name.slice(0, 21)}…` : name}</text>
      <text class="note" x="14" y="34">${note}</text>
    </g>`;
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
}

const said = (graph) => graph.map(({ name, after = [] }) => (after.length ? `${name} after ${after.join(" and ")}` : name)).join("; ");
