// The applied pipelines.

import { html } from "../vendor/preact.js";
import { number } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { Loaded, Moment, Table } from "../parts/parts.js";

export function Pipelines() {
  useTitle("Pipelines");
  useFocus(null);
  const found = useData("/api/v1/pipelines", { concerns: ({ topic }) => topic === "pipeline-events" || topic === "backfill-events" });
  return html`
    <div class="page-head"><h1>Pipelines</h1></div>
    <${Loaded} of=${found}>${(rows) => html`<${Table} label="Pipelines" rows=${rows} keyOf=${(row) => row.name} columns=${COLUMNS} empty=${html`No pipelines yet: <code>retrofill pipelines apply FILE</code>`} />`}<//>`;
}

const COLUMNS = [
  { title: "Pipeline", of: (row) => html`<a class="strong" href=${`/pipelines/${encodeURIComponent(row.name)}`}>${row.name}</a>` },
  { title: "Schedule", of: (row) => html`<code>${row.schedule}</code> <span class="muted">${row.timezone}</span>` },
  { title: "Dates", of: (row) => html`<span class="number">${row.start}${row.end ? ` – ${row.end}` : ""}</span>` },
  { title: "Tasks", kind: "long", of: (row) => row.tasks.join(", ") },
  { title: "Concurrency", kind: "number", of: (row) => number(row.max_active_runs) },
  { title: "Batch size", of: (row) => `${row.batch_size}${row.batch_mode === "range" ? ", as one range" : ""}` },
  { title: "Pool", of: (row) => row.pool },
  { title: "Active backfills", kind: "number", of: (row) => (row.active_backfills ? html`<a href=${`/?pipeline=${encodeURIComponent(row.name)}&state=active`}>${row.active_backfills}</a>` : "0") },
  { title: "Applied", of: (row) => html`<${Moment} at=${row.applied_at} />` },
  { title: "", of: (row) => html`<a class="button small" href=${`/new?pipeline=${encodeURIComponent(row.name)}`} aria-label=${`New backfill of ${row.name}`}>Backfill…</a>` },
];
