// Whether all parts are there and keep up, and where drivers run.

import { html } from "../vendor/preact.js";
import { duration, moment, number, plural } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { Badge, Loaded, Moment, Section, Table, Trouble } from "../parts/parts.js";

// More messages than this, or one that waits longer, and a service does not keep up.
const [BEHIND, LATE_SECONDS] = [1000, 30];

export function Health() {
  useTitle("Health");
  useFocus(null);
  const found = useData("/api/v1/health", { concerns: ({ topic }) => topic === "run-events" || topic === "backfill-events", every: 5000 });
  return html`
    <div class="page-head"><h1>Health</h1>${found.data && html`<span class="muted">as of <${Moment} at=${found.data.at} /></span>`}</div>
    <${Loaded} of=${found}>${(health) => html`
      ${health.postgres && html`<${Trouble} error=${{ message: `Postgres: ${health.postgres}` }} />`}
      ${health.kafka && html`<${Trouble} error=${{ message: `Kafka: ${health.kafka}` }} />`}
      <${Section} title="Services"><${Table} label="Services" rows=${health.services} keyOf=${(row) => row.name} empty="Postgres does not say" columns=${SERVICES} /><//>
      <${Section} title="Pools"><${Table} label="Pools" rows=${health.pools} keyOf=${(row) => row.pool} empty="no run-starter is alive, and no pipeline is applied" columns=${POOLS} /><//>
      <${Section} title="Hosts"><${Table} label="Hosts" rows=${health.hosts} keyOf=${(row) => row.id} empty="no run-starter is alive: nothing starts" columns=${HOSTS} /><//>
      <${Section} title="Live attempts">
        <${Table} label="Live attempts" rows=${health.attempts} keyOf=${(row) => row.id} empty="nothing runs" columns=${ATTEMPTS} />
        ${health.live_attempts > health.attempts.length && html`<p class="muted">The first ${number(health.attempts.length)} of ${number(health.live_attempts)}.</p>`}
      <//>`}
    <//>`;
}

/** A service without an owner of some of its shards does not read them. */
function stateOf(row) {
  if (row.replicas.length === 0) return "absent";
  return row.owned < row.shards || (row.lag ?? 0) > BEHIND || row.oldest_message_seconds > LATE_SECONDS ? "behind" : "up to date";
}

/** How long the first one has waited, unless that is just now. */
const age = (seconds) => (seconds >= 2 ? html`<div class="muted">oldest ${duration(Math.floor(seconds))}</div>` : "");

const SERVICES = [
  { title: "State", of: (row) => html`<${Badge} state=${stateOf(row)} />` },
  { title: "Service", of: (row) => html`<strong>${row.name}</strong>` },
  { title: "Replicas", of: (row) => row.replicas.join(", ") || "none is connected" },
  { title: "Shards owned", kind: "number", of: (row) => html`${row.owned}<span class="muted"> / ${row.shards}</span>` },
  { title: "Messages to handle", kind: "number", of: (row) => html`${number(row.lag)}${age(row.oldest_message_seconds)}` },
  { title: "Events to publish", kind: "number", of: (row) => html`${number(row.unpublished)}${age(row.oldest_unpublished_seconds)}` },
];

const POOLS = [
  { title: "Pool", of: (row) => html`<strong>${row.pool}</strong>` },
  { title: "Hosts", kind: "number", of: (row) => (row.hosts ? row.hosts : html`<${Badge} state="absent" text="nobody serves it" />`) },
  { title: "Drivers", kind: "number", of: (row) => number(row.slots) },
  { title: "Free", kind: "number", of: (row) => number(row.free) },
  { title: "Python", of: (row) => row.python.join(", ") || "–" },
  { title: "Spark", of: (row) => row.spark.join(", ") || "–" },
  { title: "Pipelines", kind: "number", of: (row) => number(row.pipelines) },
  { title: "Spark lost", of: (row) => (row.spark_lost ? `in ${row.spark_lost} of ${row.of_minutes} minutes` : "–") },
];

const HOSTS = [
  { title: "State", of: (row) => html`<${Badge} state=${row.alive ? "alive" : "dead"} />` },
  { title: "Host", of: (row) => html`<strong>${row.name}</strong>` },
  { title: "Pool", of: (row) => row.pool },
  { title: "Drivers", of: (row) => ["busy", "warm", "cold"].filter((kind) => row[kind]).map((kind) => `${row[kind]} ${kind}`).join(", ") || "none" },
  { title: "Since", of: (row) => html`<${Moment} at=${row.started_at} />` },
  { title: "Note", kind: "long", of: (row) => row.note },
];

const ATTEMPTS = [
  { title: "State", of: (row) => html`<${Badge} state=${row.state} />` },
  { title: "Attempt", kind: "number", of: (row) => row.id },
  { title: "Backfill", of: (row) => html`<a href=${`/backfills/${encodeURIComponent(row.backfill_id)}`}>${row.pipeline} <span class="id">${row.backfill_id}</span></a>` },
  { title: "First interval", of: (row) => html`<span class="number">${row.first_interval ? moment(row.first_interval, row.timezone) : "–"}</span>` },
  { title: "Runs", of: (row) => plural(row.runs, "run") },
  { title: "For", kind: "number", of: (row) => duration(row.seconds) },
  { title: "Host", of: (row) => row.host },
];
