// One backfill: how far it is, its intervals as a grid, and what went wrong.

import { html, useState } from "../vendor/preact.js";
import { counts, duration, instant, moment, number, plural, range } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { Badge, Brief, Facts, Fault, Loaded, Moment, Notice, Progress, Section, Table, Trouble, gist } from "../parts/parts.js";
import { Actions } from "./backfill-actions.js";
import { Intervals } from "./intervals.js";

export function Backfill({ id }) {
  const [outcome, setOutcome] = useState({});
  useFocus(id);
  const mine = (event) => event.backfill_id === id;
  const found = useData(`/api/v1/backfills/${encodeURIComponent(id)}`, { concerns: mine });
  useTitle(found.data ? `${found.data.pipeline} ${id}` : id);
  const done = (error, said) => {
    setOutcome({ error, said });
    found.refresh();
  };
  return html`
    <p class="crumbs"><a href="/">Backfills</a></p>
    <${Loaded} of=${found}>${(facts) => html`
      <div class="page-head">
        <h1><a href=${`/pipelines/${encodeURIComponent(facts.pipeline)}`}>${facts.pipeline}</a> <span class="id">${facts.id}</span></h1>
        <${Badge} state=${facts.state} />
        <span class="spring"></span>
        <${Actions} facts=${facts} onDone=${done} />
      </div>
      <${Trouble} error=${outcome.error} />
      ${outcome.said && html`<${Notice}>${outcome.said}<//>`}
      ${facts.held_back && html`<${Notice} kind="warn">${facts.held_back}<//>`}
      <${Standing} facts=${facts} />
      ${facts.purged ? html`<${Notice}>Its details and runs were purged; its counts remain.<//>` : html`<${Intervals} facts=${facts} onDone=${done} said=${found.error !== null} />`}
      <${Failures} facts=${facts} />
      <${Suspects} facts=${facts} />
      <${Attempts} facts=${facts} />
      <${Undelivered} facts=${facts} />
      <${Settings} facts=${facts} />`}
    <//>`;
}

function Standing({ facts }) {
  const { by_state: byState, runs, estimate } = facts;
  const ended = (byState.succeeded ?? 0) + (byState.failed ?? 0) + (byState.cancelled ?? 0);
  const percent = runs ? Math.floor((ended * 100) / runs) : 0;
  return html`
    <div class="standing">
      <${Progress} byState=${byState} runs=${runs} label="Progress" large />
      <dl class="figures">
        <${Figure} name="ended" value=${html`${number(ended)}<span class="muted"> / ${number(runs)}</span>`} note=${`${percent} %`} />
        <${Figure} name="failed" value=${number(byState.failed ?? 0)} kind=${byState.failed ? "bad" : ""} note=${byState.cancelled ? plural(byState.cancelled, "cancelled", "cancelled") : null} />
        <${Figure} name="speed" value=${facts.runs_per_second == null ? "–" : speed(facts.runs_per_second)} note=${facts.batch_now ? `${facts.batch_now.runs} runs an attempt` : null} />
        ${facts.ended_at
          ? html`<${Figure} name="took" value=${duration((Date.parse(facts.ended_at) - Date.parse(facts.requested_at)) / 1000)} note=${`${instant(facts.ended_at)} UTC`} />`
          : html`<${Figure} name="time left" value=${estimate ? duration(estimate.seconds) : "–"} note=${estimate ? `${duration(estimate.low)} to ${duration(estimate.high)}` : null} />`}
        ${facts.cost?.core_seconds != null && html`<${Figure} name="core-hours" value=${(facts.cost.core_seconds / 3600).toFixed(2)} note=${facts.cost.rows_written != null ? `${number(facts.cost.rows_written)} rows written` : null} />`}
      </dl>
    </div>`;
}

const Figure = ({ name, value, note = null, kind = "" }) =>
  html`<div><dt>${name}</dt><dd class=${kind}>${value}</dd>${note && html`<dd class="note">${note}</dd>`}</div>`;

const speed = (perSecond) => (perSecond >= 1 ? `${perSecond.toFixed(1)} runs/s` : `${(perSecond * 60).toFixed(1)} runs/min`);

function Failures({ facts }) {
  if (facts.failed_runs.length === 0) return null;
  const hidden = (facts.by_state.failed ?? 0) - facts.failed_runs.length;
  return html`
    <${Section} title="Failed runs">
      <div class="failures">${facts.failed_runs.map((run) => html`
        <div key=${run.id} class="failure">
          <a href=${`/runs/${run.id}`}>${moment(run.interval_start, facts.timezone)}</a>
          <details>
          <summary>${reason(run)}</summary>
          ${run.failed_tasks.map((task) => html`<${Fault} key=${task.task} error=${task.error ?? { type: "no error is recorded" }} what=${`${task.task}, try ${task.try_number}:`} />`)}
          ${run.failed_tasks.length === 0 && run.error && html`<${Fault} error=${run.error} />`}
          ${run.losses.map((loss) => html`<p key=${loss.attempt} class="muted">Time ${loss.attempt}: the driver was lost: ${loss.reason}</p>`)}
          </details>
          <span class="muted">begun ${run.attempt === 1 ? "once" : `${run.attempt} times`}</span>
        </div>`)}</div>
      ${hidden > 0 && html`<p class="muted">and ${number(hidden)} more: choose the state “failed” in the table of intervals</p>`}
    <//>`;
}

function reason(run) {
  const error = run.failed_tasks[0]?.error ?? run.error;
  return error ? `${error.type}: ${gist(error.message)}` : "no error is recorded";
}

function Suspects({ facts }) {
  if (facts.suspects.length === 0) return null;
  return html`
    <${Section} title="Retried alone, because their driver was lost">
      <${Table} label="Runs that are retried alone" rows=${facts.suspects} keyOf=${(run) => run.id} columns=${[
        { title: "Run", of: (run) => html`<a href=${`/runs/${run.id}`}>${moment(run.interval_start, facts.timezone)}</a>` },
        { title: "State", of: (run) => html`<${Badge} state=${run.state} />` },
        { title: "Why", of: (run) => run.losses.map((loss) => loss.reason).join("; ") },
      ]} />
    <//>`;
}

function Undelivered({ facts }) {
  if (facts.undelivered.length === 0) return null;
  return html`
    <${Section} title="Callbacks that have not arrived">
      <${Table} label="Callbacks that have not arrived" rows=${facts.undelivered} keyOf=${(each) => `${each.kind} ${each.receiver} ${each.since}`} columns=${[
        { title: "Receiver", of: (each) => html`<strong>${each.receiver}</strong> <span class="muted">${each.kind}</span>` },
        { title: "Waiting", kind: "number", of: (each) => number(each.waiting) },
        { title: "Failed", kind: "number", of: (each) => number(each.failed) },
        { title: "Since (UTC)", of: (each) => html`<${Moment} at=${each.since} />` },
        { title: "Down since (UTC)", of: (each) => html`<${Moment} at=${each.down_since} />` },
        { title: "Called next (UTC)", of: (each) => html`<${Moment} at=${each.next_call_at} />` },
        { title: "Last error", kind: "long", of: (each) => html`<${Brief} text=${each.last_error} />` },
      ]} />
    <//>`;
}

function Attempts({ facts }) {
  if (facts.attempts.length === 0) return null;
  return html`
    <${Section} title="Attempts that did not come to their end">
      <${Table} label="Attempts that did not come to their end" rows=${facts.attempts} keyOf=${(attempt) => attempt.id} columns=${[
        { title: "Attempt", kind: "number", of: (attempt) => attempt.id },
        { title: "Of", of: (attempt) => [...new Set([attempt.first_interval, attempt.last_interval].filter(Boolean).map((at) => moment(at, facts.timezone)))].join(" – ") || "–" },
        { title: "Ended", of: (attempt) => html`<${Badge} state=${attempt.outcome} />` },
        { title: "At (UTC)", of: (attempt) => html`<${Moment} at=${attempt.ended_at} />` },
        { title: "Host", of: (attempt) => attempt.host },
        { title: "Why", kind: "long", of: (attempt) => gist(attempt.reason) },
      ]} />
    <//>`;
}

const REPROCESS = { none: "none that were processed", failed: "failed ones again", completed: "all again" };

/** How many attempts may be live: no more than the pipeline allows. */
function atOnce({ max_active_runs: asked, pipeline_max_active_runs: allowed }) {
  return asked > allowed ? `${number(allowed)} (${number(asked)} asked, the pipeline allows ${number(allowed)})` : number(asked);
}

function Settings({ facts }) {
  const conf = Object.keys(facts.conf ?? {}).length ? html`<code>${JSON.stringify(facts.conf)}</code>` : null;
  const budget = facts.budget && Object.entries(facts.budget).map(([name, value]) => `${name.replace("_", " ")} ${value}`).join(", ");
  return html`
    <${Section} title="Request">
      <${Facts} of=${[
        ["range", html`<span class="number">${range(facts.range_start, facts.range_end, facts.timezone)}</span> <span class="muted">${facts.timezone}</span>`],
        ["requested", html`<${Moment} at=${facts.requested_at} /> <span class="muted">UTC${facts.triggered_by ? `, by ${facts.triggered_by}` : ""}</span>`],
        ["at once", atOnce(facts)],
        ["runs of an attempt", facts.batch_now ? `now ${facts.batch_now.runs}: ${facts.batch_now.why}` : `${facts.batch_size}${facts.batch_mode === "range" ? ", as one range" : ""}`],
        ["order", facts.run_backwards ? "latest first" : null],
        ["reprocess", REPROCESS[facts.reprocess_behavior]],
        ["excluded", Object.keys(facts.skipped).length ? counts(facts.skipped) : null],
        ["on a run's failure", facts.on_run_failure],
        ["undoes", facts.undoes && html`<a href=${`/backfills/${encodeURIComponent(facts.undoes)}`}>${facts.undoes}</a>`],
        ["budget", budget],
        ["changed since its approval", facts.changed_intervals.length ? facts.changed_intervals.slice(0, 10).map((at) => moment(at, facts.timezone)).join(", ") + (facts.changed_intervals.length > 10 ? " …" : "") : null],
        ["conf", conf],
        ["code", facts.latest_code ? "the latest at each start" : facts.code_sha256 && html`<code>${facts.code_sha256.slice(0, 12)}</code>`],
        ["started again", facts.runs_started_again ? plural(facts.runs_started_again, "run") : null],
        ["cancelled by", facts.cancel_cause],
      ]} />
    <//>`;
}
