// Deadlines: what is due, what was missed.

import { html } from "../vendor/preact.js";
import { withQuery } from "../lib/api.js";
import { duration, moment } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { go } from "../router.js";
import { Badge, Choice, Loaded, Moment, Table } from "../parts/parts.js";

const STATES = [["", "All"], ["armed", "Armed"], ["missed", "Missed"], ["met", "Met"], ["void", "Void"]];

export function Deadlines({ query }) {
  const state = query.get("state") ?? "";
  useTitle("Deadlines");
  useFocus(null);
  const found = useData(withQuery("/api/v1/deadlines", { state, limit: 200 }), { concerns: ({ topic, type }) => topic === "deadline-missed" || type === "moved", every: 15_000 });
  return html`
    <div class="page-head">
      <h1>Deadlines</h1><span class="spring"></span>
      <${Choice} name="state" label="State" value=${state} options=${STATES} onChange=${(next) => go(withQuery("/deadlines", { state: next }), { replace: true })} />
    </div>
    <${Loaded} of=${found}>${(rows) => html`<${DeadlineTable} rows=${rows} />`}<//>`;
}

/** `of`: "run" leaves out what is the same in all rows of a run's page. */
export function DeadlineTable({ rows, of = null }) {
  const columns = [
    { title: "State", of: (row) => html`<${Badge} state=${row.state} />` },
    { title: "Alert", of: (row) => html`<strong>${row.alert}</strong>` },
    ...(of === "run" ? [] : [{ title: "Pipeline", of: (row) => row.pipeline }]),
    { title: "For", of: subject },
    { title: "Due", of: (row) => html`<${Moment} at=${row.due_at} />` },
    { title: "Counts from", of: (row) => html`${words(row.reference)} <span class="muted">+ ${duration(row.interval_seconds ?? 0)}</span>` },
    { title: "Decided", of: (row) => html`<${Moment} at=${row.decided_at} />` },
    { title: "Note", of: (row) => row.reason ?? (row.recovered_at ? html`done <${Moment} at=${row.recovered_at} />` : "") },
    { title: "Calls", of: (row) => row.callback ?? "–" },
  ];
  return html`<${Table} label="Deadlines" rows=${rows} keyOf=${(row) => row.id} empty="no deadlines" columns=${columns} />`;
}

/** RUN_STARTED_AT as "run started". */
export const words = (reference) => reference.toLowerCase().replace(/_at$/, "").replaceAll("_", " ");

function subject(row) {
  if (row.run_id === null) return html`<a href=${`/backfills/${encodeURIComponent(row.backfill_id)}`}>backfill <span class="id">${row.backfill_id}</span></a>`;
  return html`${row.task ? `${row.task} of ` : ""}<a href=${`/runs/${row.run_id}`} title=${row.timezone}>${row.interval_start ? moment(row.interval_start, row.timezone) : `run ${row.run_id}`}</a>`;
}
