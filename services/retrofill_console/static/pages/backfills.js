// All backfills, newest first, with progress and time left. What is searched for is in the address.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { withQuery } from "../lib/api.js";
import { duration, number, range } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { ACTIVE_BACKFILL, wordOf } from "../lib/states.js";
import { go } from "../router.js";
import { Badge, Loaded, Moment, Progress, Table } from "../parts/parts.js";

const ENDED = ["succeeded", "failed", "cancelled"];
const SHOWN = { active: [...ACTIVE_BACKFILL], ended: ENDED };
const STATES = [["", "any state"], ["active", "active"], ["ended", "ended"], ...[...ACTIVE_BACKFILL, ...ENDED].map((state) => [state, wordOf(state)])];
const HOURS = { day: 24, week: 7 * 24, month: 30 * 24 };
const REQUESTED = [["", "at any time"], ["day", "in the last 24 hours"], ["week", "in the last 7 days"], ["month", "in the last 30 days"]];
const NAMES = ["text", "pipeline", "state", "requester", "day", "requested", "limit"];
const MORE = 50;
// Typing is not over before the keys rest this long.
const REST_MS = 300;

/** The address of the API for what is wanted: `wanted` has the names of NAMES, `now` in ms. */
export function pathOf({ text, pipeline, state, requester, day, requested, limit }, now) {
  // To the hour, so that viewers share answers.
  const since = HOURS[requested] ? new Date(Math.floor(now / 3_600_000 - HOURS[requested]) * 3_600_000).toISOString().replace(".000", "") : "";
  const path = withQuery("/api/v1/backfills", { text, pipeline, requester, day, since, limit: limit ?? MORE });
  return [path, ...(SHOWN[state] ?? (state ? [state] : [])).map((each) => `state=${encodeURIComponent(each)}`)].join("&");
}

export function Backfills({ query }) {
  const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
  const searched = NAMES.some((name) => name !== "limit" && wanted[name]);
  const limit = +(wanted.limit || MORE);
  useFocus(null);
  const found = useData(pathOf({ ...wanted, limit }, Date.now()), { concerns: (event) => Boolean(event.backfill_id), every: 20_000 });
  const pipelines = useData("/api/v1/pipelines", { concerns: (event) => event.topic === "pipeline-events" });
  useTitle("Backfills");
  const change = (values) => go(withQuery("/", { ...wanted, limit: "", ...values }), { replace: true });
  const choice = (name, label, options) => html`
    <label>${label} <select value=${wanted[name]} onChange=${(event) => change({ [name]: event.target.value })}>
      ${options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
    </select></label>`;
  return html`
    <div class="page-head"><h1>Backfills</h1></div>
    <form class="row filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <${Typed} name="text" label="Search" placeholder="id or pipeline" value=${wanted.text} change=${change} />
      ${choice("pipeline", "Pipeline", [["", "all"], ...names(pipelines.data, wanted.pipeline).map((name) => [name, name])])}
      ${choice("state", "State", STATES)}
      <${Typed} name="requester" label="By" placeholder="anyone" value=${wanted.requester} change=${change} />
      ${choice("requested", "Requested", REQUESTED)}
      <label>Day <input type="date" value=${wanted.day} onChange=${(event) => change({ day: event.target.value })} /></label>
      ${searched && html`<a class="button" href="/">Clear</a>`}
    </form>
    <${Loaded} of=${found}>${(rows) => html`
      <${Table} label="Backfills" columns=${COLUMNS} rows=${rows} keyOf=${(row) => row.id} empty=${html`No backfills${searched ? " like that" : " yet"}. <a href="/new">Create one</a>`} />
      ${rows.length >= limit && html`<p class="more"><button type="button" onClick=${() => change({ limit: limit * 2 })}>Show more</button></p>`}`}
    <//>`;
}

/** A text that is searched for once the keys rest. */
function Typed({ name, label, placeholder, value, change }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  useEffect(() => setText(value), [value]);
  const typed = (event) => {
    const next = event.target.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ [name]: next.trim() }), REST_MS);
  };
  return html`<label>${label} <input type="search" value=${text} placeholder=${placeholder} onInput=${typed} /></label>`;
}

const names = (pipelines, chosen) => [...new Set([...(pipelines ?? []).map(({ name }) => name), ...(chosen ? [chosen] : [])])];

const COLUMNS = [
  { title: "State", of: (row) => html`<${Badge} state=${row.state} />` },
  { title: "Backfill", of: (row) => html`<a class="strong" href=${`/backfills/${encodeURIComponent(row.id)}`}>${row.pipeline}</a><div class="id">${row.id}</div>` },
  { title: "Range", kind: "range", of: (row) => html`<span class="number" title=${row.timezone}>${range(row.range_start, row.range_end, row.timezone)}</span>` },
  { title: "Runs", kind: "wide", of: (row) => html`<${Progress} byState=${byState(row)} runs=${row.runs} label=${`Progress of ${row.id}`} />` },
  { title: "Ended", kind: "number", of: (row) => html`${number(row.ended_runs)}<span class="muted"> / ${number(row.runs)}</span>` },
  { title: "Time left", of: timeLeft },
  { title: "Requested", of: (row) => html`<${Moment} at=${row.requested_at} /><div class="muted">${row.triggered_by}</div>` },
];

/** A purged backfill has no runs any more; its own state says how they ended. */
const byState = (row) => (Object.keys(row.by_state).length || !row.ended_at ? row.by_state : { [row.state]: row.runs });

function timeLeft(row) {
  if (row.ended_at) return html`<span class="muted">took ${duration((Date.parse(row.ended_at) - Date.parse(row.requested_at)) / 1000)}</span>`;
  if (!row.estimate) return html`<span class="muted">–</span>`;
  const { seconds, low, high } = row.estimate;
  return html`${duration(seconds)}<div class="muted">${duration(low)} to ${duration(high)}</div>`;
}
