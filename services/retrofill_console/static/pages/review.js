// A review: what is staged, compared with what is published, interval by interval.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { moment, number, plural } from "../lib/format.js";
import { Act, Choice, Notice, Section, Table, Trouble } from "../parts/parts.js";
import { publishSome } from "./selection.js";

// Columns of an output whose figures are shown, those with the first names; and outputs that are shown at once.
const [MOST_COLUMNS, MOST_ROWS] = [6, 25];
const FIGURES = [["nulls", "nulls"], ["sum", "total"], ["min", "least"], ["max", "greatest"]];

const changes = (row) => row.changed_by_others || row.published === null || row.row_change !== 0 || row.changed_columns.length > 0;

/** The largest changes first, as the command line has them. */
export function sorted(rows) {
  const by = (row) => [!row.changed_by_others, -Math.abs(row.row_change), -row.changed_columns.length, Date.parse(row.interval_start)];
  return rows.map((row) => [by(row), row]).sort(([a], [b]) => {
    const n = a.findIndex((each, m) => each !== b[m]);
    return n < 0 ? 0 : a[n] - b[n];
  }).map(([, row]) => row);
}

/** What changes, in words: `price: sum 10 → 12, max 3 → 5; note: only staged`. */
export function whatOf({ published: before, staged: after, changed_columns: columns }) {
  if (before === null) return "it is new";
  if (before.rows === 0 && after.rows !== 0) return "it was empty";
  if (after.rows === 0 && before.rows !== 0) return "it becomes empty";
  const shown = columns.slice(0, MOST_COLUMNS).map((name) => `${name}: ${figures(before.columns[name], after.columns[name])}`);
  const more = columns.length - shown.length;
  return [...shown, ...(more ? [plural(more, "more column")] : [])].join("; ") || "the same figures";
}

function figures(before, after) {
  if (!before || !after) return after ? "only staged" : "only published";
  return FIGURES.filter(([, name]) => before[name] !== after[name]).map(([label, name]) => `${label} ${short(before[name])} → ${short(after[name])}`).join(", ");
}

function short(value) {
  const text = value == null ? "none" : typeof value === "number" ? value.toLocaleString("en-US", { maximumSignificantDigits: 6 }) : String(value);
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}

const sizeOf = (side) => (side === null ? "nothing" : side.rows === null ? plural(side.bytes ?? 0, "byte") : plural(side.rows, "row"));
const signed = (count) => (count > 0 ? `+${number(count)}` : count < 0 ? `−${number(-count)}` : "0");

/** The comparison so far: {begun, rows, ended, problem}, and what starts and stops it. */
function useComparison(id) {
  const [found, setFound] = useState(null);
  const source = useRef(null);
  const stop = () => {
    source.current?.close();
    source.current = null;
  };
  useEffect(() => stop, [id]);
  const start = () => {
    stop();
    setFound({ begun: null, rows: [], ended: false, problem: null });
    const mine = (source.current = new EventSource(`/api/v1/backfills/${encodeURIComponent(id)}/diff`));
    const on = (name, next) => mine.addEventListener(name, (message) => setFound((last) => ({ ...last, ...next(JSON.parse(message.data), last) })));
    const end = (next) => {
      stop();
      setFound((last) => ({ ...last, ended: true, ...next }));
    };
    on("begin", (begun) => ({ begun }));
    on("change", (row, last) => ({ rows: [...last.rows, row] }));
    mine.addEventListener("end", () => end({}));
    mine.addEventListener("problem", (message) => end({ problem: { message: JSON.parse(message.data).error } }));
    // It would begin anew.
    mine.onerror = () => end({ problem: { message: "the comparison was interrupted: compare again" } });
  };
  const cancel = () => {
    stop();
    setFound((last) => ({ ...last, ended: true }));
  };
  return { found, start, cancel };
}

export function Review({ facts, onDone }) {
  const { found, start, cancel } = useComparison(facts.id);
  const running = found !== null && !found.ended;
  const outdated = found?.begun && found.begun.review !== facts.review;
  const aside = html`<span class="spring"></span>${running
    ? html`<span class="muted" role="status">${progress(found)}</span><button type="button" onClick=${cancel}>Stop</button>`
    : html`<button type="button" onClick=${start}>${found === null ? "Compare" : "Compare again"}</button>`}`;
  return html`
    <${Section} title="Review" aside=${aside}>
      ${found === null && html`<p class="muted">Nothing is published before somebody publishes it. Compare reads what is staged and what is published with Spark, about once each, and shows rows and figures of columns.</p>`}
      ${facts.changed_intervals.length > 0 && html`<${Notice} kind="warn">Somebody has changed what ${plural(facts.changed_intervals.length, "approved run")} would replace: review again.<//>`}
      ${outdated && html`<${Notice} kind="warn">Another review has begun since: compare again.<//>`}
      <${Trouble} error=${found?.problem} />
      ${found?.rows.length > 0 && html`<${Changes} rows=${found.rows} zone=${facts.timezone} publish=${found.ended && !outdated ? (intervals) => publishSome(facts, intervals) : null} onDone=${onDone} />`}
    <//>`;
}

const progress = ({ begun, rows }) => (begun === null ? "Waiting…" : `${number(rows.length)} of ${plural(begun.outputs, "output")}`);

/** `publish(intervals)`: publishes some of them; null: not now. */
export function Changes({ rows, zone, publish = null, onDone = null }) {
  const [shown, setShown] = useState("changes");
  const [most, setMost] = useState(MOST_ROWS);
  const [chosen, setChosen] = useState(new Set());
  const choose = (interval, on) => setChosen((last) => {
    const next = new Set(last);
    if (on) next.add(interval);
    else next.delete(interval);
    return next;
  });
  const published = (error) => {
    if (!error) setChosen(new Set());
    onDone(error, error ? null : `Publishing ${plural(chosen.size, "interval")}; the others wait for another review.`);
  };
  const changed = rows.filter(changes);
  const listed = sorted(shown === "changes" ? changed : rows);
  return html`
    <div class="row review-head">
      <span>${number(changed.length)} of ${plural(rows.length, "output")} ${changed.length === 1 ? "changes" : "change"}, ${signed(rows.reduce((sum, row) => sum + row.row_change, 0))} rows</span>
      <span class="spring"></span>
      ${publish && chosen.size > 0 && html`<${Act} kind="primary" act=${() => publish([...chosen])} onDone=${published}>Publish ${plural(chosen.size, "interval")}<//>`}
      <${Choice} name="changes" label="Which outputs" value=${shown} options=${[["changes", "Changes"], ["all", "All"]]} onChange=${setShown} />
    </div>
    <${Table} label="Changes" rows=${listed.slice(0, most)} keyOf=${(row) => `${row.run_id} ${row.output}`} empty="what is staged has the same figures as what is published" columns=${[
      ...(publish ? [{ title: "Publish", of: (row) => html`<input type="checkbox" checked=${chosen.has(row.interval_start)} aria-label=${`Publish ${moment(row.interval_start, zone)}`} onChange=${(event) => choose(row.interval_start, event.target.checked)} />` }] : []),
      { title: "Interval", of: (row) => html`<a href=${`/runs/${row.run_id}`} title=${zone}>${moment(row.interval_start, zone)}</a>` },
      { title: "Output", kind: "long", of: (row) => html`<code>${row.output}</code>` },
      { title: "Published", kind: "number", of: (row) => sizeOf(row.published) },
      { title: "Staged", kind: "number", of: (row) => sizeOf(row.staged) },
      { title: "Rows", kind: "number", of: (row) => (row.row_change ? html`<strong>${signed(row.row_change)}</strong>` : "–") },
      { title: "What changes", kind: "long", of: (row) => html`${row.changed_by_others && html`<strong class="bad">the published output has changed since the comparison</strong> `}${whatOf(row)}` },
    ]} />
    ${listed.length > most && html`<p class="more"><button type="button" onClick=${() => setMost(most * 2)}>Show more</button></p>`}`;
}
