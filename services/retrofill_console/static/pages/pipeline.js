// One pipeline as it was applied, and its backfills.

import { html } from "../vendor/preact.js";
import { withQuery } from "../lib/api.js";
import { duration, number, range } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { Badge, Facts, Loaded, Moment, Progress, Section, Table } from "../parts/parts.js";
import { Coverage } from "./coverage.js";
import { words } from "./deadlines.js";
import { Graph } from "./graph.js";

export function Pipeline({ name }) {
  useTitle(name);
  useFocus(null);
  const found = useData(`/api/v1/pipelines/${encodeURIComponent(name)}`, { concerns: (event) => event.topic === "pipeline-events" });
  const backfills = useData(withQuery("/api/v1/backfills", { pipeline: name, limit: 10 }), { concerns: (event) => Boolean(event.backfill_id) });
  return html`
    <p class="crumbs"><a href="/pipelines">Pipelines</a></p>
    <${Loaded} of=${found}>${(pipeline) => html`
      <div class="page-head">
        <h1>${pipeline.name}</h1><span class="spring"></span>
        <a class="button primary" href=${`/new?pipeline=${encodeURIComponent(name)}`}>New backfill of it</a>
      </div>
      <${Facts} of=${factsOf(pipeline)} />
      <${Coverage} name=${name} />
      <${Section} title="Tasks">
        <${Graph} graph=${pipeline.tasks} />
        <${Table} label="Tasks" rows=${pipeline.tasks} keyOf=${(task) => task.name} empty="no tasks" columns=${TASKS} />
      <//>
      ${pipeline.deadlines?.length > 0 && html`<${Section} title="Deadlines"><${Table} label="Deadlines" rows=${pipeline.deadlines} keyOf=${(each) => each.name} empty="" columns=${DEADLINES} /><//>`}
      <${Section} title="Last backfills">
        <${Loaded} of=${backfills}>${(rows) => html`<${Table} label="Last backfills" rows=${rows} keyOf=${(row) => row.id} empty="none yet" columns=${BACKFILLS} />`}<//>
      <//>`}
    <//>`;
}

const factsOf = (pipeline) => [
  ["schedule", html`<code>${pipeline.schedule}</code> <span class="muted">${pipeline.timezone}</span>`],
  ["dates", `${pipeline.start}${pipeline.end ? ` – ${pipeline.end}` : " –"}`],
  ["concurrency", number(pipeline.max_active_runs)],
  ["batch size", pipeline.batch_target_seconds ? "chosen for each batch" : `${pipeline.batch_size}${pipeline.batch_mode === "range" ? ", as one range" : ""}`],
  ["run timeout", pipeline.run_timeout_seconds == null ? null : duration(pipeline.run_timeout_seconds)],
  ["executor", pipeline.executor],
  ["pool", pipeline.pool],
  ["code", html`<code title=${pipeline.code?.file}>${pipeline.code?.file?.split("/").pop() ?? pipeline.code?.module}:${pipeline.code?.attribute}</code>${pipeline.code?.sha256 ? html` <span class="id">${pipeline.code.sha256.slice(0, 12)}</span>` : ""}`],
  ["environment", pipeline.code?.environment ? html`<span class="id">${pipeline.code.environment.sha256.slice(0, 12)}</span> Python ${pipeline.code.environment.python}` : null],
  ["applied", html`<${Moment} at=${pipeline.applied_at} />`],
];

const TASKS = [
  { title: "Task", of: (task) => html`<strong>${task.name}</strong>` },
  { title: "Kind", of: (task) => task.kind },
  { title: "After", of: (task) => (task.after ?? []).join(", ") || "–" },
  { title: "Starts when", of: (task) => task.trigger_rule },
  { title: "Retries", kind: "number", of: (task) => task.retries },
  { title: "Timeout", kind: "number", of: (task) => (task.timeout_seconds == null ? "–" : duration(task.timeout_seconds)) },
];

const DEADLINES = [
  { title: "Deadline", of: (each) => html`<strong>${each.name}</strong>` },
  { title: "Counts from", of: (each) => words(each.reference) },
  { title: "Time", kind: "number", of: (each) => (each.interval_seconds == null ? "–" : duration(each.interval_seconds)) },
  { title: "Calls", of: (each) => each.callback?.label ?? each.callback?.name ?? each.callback?.receiver ?? each.callback?.url ?? "–" },
];

const BACKFILLS = [
  { title: "State", of: (row) => html`<${Badge} state=${row.state} />` },
  { title: "Backfill", of: (row) => html`<a href=${`/backfills/${encodeURIComponent(row.id)}`}><span class="id">${row.id}</span></a>` },
  { title: "Range", kind: "range", of: (row) => html`<span class="number" title=${row.timezone}>${range(row.range_start, row.range_end, row.timezone)}</span>` },
  { title: "Runs", kind: "wide", of: (row) => html`<${Progress} byState=${row.by_state} runs=${row.runs} label=${`Progress of ${row.id}`} />` },
  { title: "Ended", kind: "number", of: (row) => html`${number(row.ended_runs)}<span class="muted"> / ${number(row.runs)}</span>` },
  { title: "Requested", of: (row) => html`<${Moment} at=${row.requested_at} />` },
];
