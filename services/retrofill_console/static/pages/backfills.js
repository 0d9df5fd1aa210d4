// All backfills, newest first, with progress and time left.

import { html } from "../vendor/preact.js";
import { withQuery } from "../lib/api.js";
import { duration, number, range } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { ACTIVE_BACKFILL } from "../lib/states.js";
import { go } from "../router.js";
import { Badge, Choice, Loaded, Moment, Progress, Table } from "../parts/parts.js";

const SHOWN = { active: [...ACTIVE_BACKFILL], ended: ["succeeded", "failed", "cancelled"], failed: ["failed"] };
const CHOICES = [["", "All"], ["active", "Active"], ["ended", "Ended"], ["failed", "Failed"]];
const MORE = 50;

export function Backfills({ query }) {
  const [pipeline, shown, limit] = [query.get("pipeline") ?? "", query.get("state") ?? "", +(query.get("limit") ?? MORE)];
  const states = (SHOWN[shown] ?? []).map((state) => `state=${state}`).join("&");
  const path = withQuery("/api/v1/backfills", { pipeline, limit });
  useFocus(null);
  const found = useData(states ? `${path}&${states}` : path, { concerns: (event) => Boolean(event.backfill_id), every: 20_000 });
  const pipelines = useData("/api/v1/pipelines", { concerns: (event) => event.topic === "pipeline-events" });
  useTitle("Backfills");
  const change = (values) => go(withQuery("/", { pipeline, state: shown, ...values }), { replace: true });
  return html`
    <div class="page-head">
      <h1>Backfills</h1>
      <span class="spring"></span>
      <${Choice} name="shown" label="Which backfills" value=${shown} options=${CHOICES} onChange=${(state) => change({ state })} />
      <label>Pipeline <select value=${pipeline} onChange=${(event) => change({ pipeline: event.target.value })}>
        <option value="">all</option>
        ${names(pipelines.data, pipeline).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select></label>
    </div>
    <${Loaded} of=${found}>${(rows) => html`
      <${Table} label="Backfills" columns=${COLUMNS} rows=${rows} keyOf=${(row) => row.id} empty=${html`No backfills${pipeline || shown ? " like that" : " yet"}. <a href="/ask">Ask for one</a>`} />
      ${rows.length >= limit && html`<p class="more"><button type="button" onClick=${() => change({ limit: limit * 2 })}>Show more</button></p>`}`}
    <//>`;
}

const names = (pipelines, chosen) => [...new Set([...(pipelines ?? []).map(({ name }) => name), ...(chosen ? [chosen] : [])])];

const COLUMNS = [
  { title: "State", of: (row) => html`<${Badge} state=${row.state} />` },
  { title: "Backfill", of: (row) => html`<a class="strong" href=${`/backfills/${encodeURIComponent(row.id)}`}>${row.pipeline}</a><div class="id">${row.id}</div>` },
  { title: "Range", of: (row) => html`<span class="number" title=${row.timezone}>${range(row.range_start, row.range_end, row.timezone)}</span>` },
  { title: "Runs", kind: "wide", of: (row) => html`<${Progress} byState=${byState(row)} runs=${row.runs} label=${`Progress of ${row.id}`} />` },
  { title: "Ended", kind: "number", of: (row) => html`${number(row.ended_runs)}<span class="muted"> / ${number(row.runs)}</span>` },
  { title: "Time left", of: timeLeft },
  { title: "Requested (UTC)", of: (row) => html`<${Moment} at=${row.requested_at} /><div class="muted">${row.triggered_by}</div>` },
];

/** A purged backfill has no runs any more; its own state says how they ended. */
const byState = (row) => (Object.keys(row.by_state).length || !row.ended_at ? row.by_state : { [row.state]: row.runs });

function timeLeft(row) {
  if (row.ended_at) return html`<span class="muted">took ${duration((Date.parse(row.ended_at) - Date.parse(row.requested_at)) / 1000)}</span>`;
  if (!row.estimate) return html`<span class="muted">–</span>`;
  const { seconds, low, high } = row.estimate;
  return html`${duration(seconds)}<div class="muted">${duration(low)} to ${duration(high)}</div>`;
}
