// One backfill: how far it is, its intervals as a grid, and what went wrong.

import { html, useState } from "../vendor/preact.js";
import { post } from "../lib/api.js";
import { counts, duration, moment, number, plural, range } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { RUN_STATES, wordOf } from "../lib/states.js";
import { useGrid } from "../grid/reading.js";
import { Act, Badge, Brief, Facts, Loaded, Moment, Notice, Progress, Section, Table, Trouble, gist } from "../parts/parts.js";
import { Actions } from "./backfill-actions.js";
import { Failures } from "./failures.js";
import { Intervals } from "./intervals.js";
import { Review } from "./review.js";

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
    <${Loaded} of=${found}>${(facts) => html`<${Whole} facts=${facts} outcome=${outcome} onDone=${done} said=${found.error !== null} />`}<//>`;
}

/** The facts with the runs by state as the grid has them: what is counted, and what is drawn, is from one reading. */
export function asDrawn(facts, grid) {
  if (!grid || grid.length === 0) return facts;
  const drawn = Object.entries(grid.counts()).filter(([state]) => RUN_STATES.includes(state));
  return { ...facts, by_state: Object.fromEntries(drawn) };
}

/** `said`: the page already says why nothing can be read. */
function Whole({ facts: read, outcome, onDone, said }) {
  const grid = useGrid(read);
  const facts = asDrawn(read, grid.data);
  return html`
    <div class="page-head">
      <h1><a href=${`/pipelines/${encodeURIComponent(facts.pipeline)}`}>${facts.pipeline}</a> <span class="id">${facts.id}</span></h1>
      <${Badge} state=${facts.state} />
      <span class="spring"></span>
      <${Actions} facts=${facts} onDone=${onDone} />
    </div>
    <${Trouble} error=${outcome.error} />
    ${outcome.said && html`<${Notice}>${outcome.said}<//>`}
    ${facts.held_back && facts.state !== "in_review" && html`<${Notice} kind="warn">${facts.held_back}<//>`}
    <${Standing} facts=${facts} />
    ${facts.state === "in_review" && html`<${Review} key=${facts.id} facts=${facts} onDone=${onDone} />`}
    ${facts.purged ? html`<${Notice}>Its details and runs were purged; its counts remain.<//>` : html`<${Intervals} facts=${facts} grid=${grid} onDone=${onDone} said=${said} />`}
    <${Failures} facts=${facts} onDone=${onDone} />
    <${Suspects} facts=${facts} />
    <${Attempts} facts=${facts} />
    <${Undelivered} facts=${facts} />
    <${Settings} facts=${facts} onDone=${onDone} />`;
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
        <${Figure} name="failed" value=${number(byState.failed ?? 0)} kind=${byState.failed ? "bad" : ""} note=${byState.cancelled ? `${number(byState.cancelled)} canceled` : null} />
        <${Figure} name="speed" value=${facts.runs_per_second == null ? "–" : speed(facts.runs_per_second)} note=${facts.batch_now ? `${plural(facts.batch_now.runs, "run")} a batch` : null} />
        ${facts.ended_at
          ? html`<${Figure} name="took" value=${duration((Date.parse(facts.ended_at) - Date.parse(facts.requested_at)) / 1000)} note=${html`ended <${Moment} at=${facts.ended_at} />`} />`
          : html`<${Figure} name="time left" value=${estimate ? duration(estimate.seconds) : "–"} note=${estimate ? `${duration(estimate.low)} to ${duration(estimate.high)}` : null} />`}
        ${facts.cost?.core_seconds != null && html`<${Figure} name="core-hours" value=${(facts.cost.core_seconds / 3600).toFixed(2)} note=${facts.cost.rows_written != null ? `${number(facts.cost.rows_written)} rows written` : null} />`}
      </dl>
    </div>`;
}

const Figure = ({ name, value, note = null, kind = "" }) =>
  html`<div><dt>${name}</dt><dd class=${kind}>${value}</dd>${note && html`<dd class="note">${note}</dd>`}</div>`;

const speed = (perSecond) => (perSecond >= 1 ? `${perSecond.toFixed(1)} runs/s` : `${(perSecond * 60).toFixed(1)} runs/min`);

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
        { title: "Since", of: (each) => html`<${Moment} at=${each.since} />` },
        { title: "Down since", of: (each) => html`<${Moment} at=${each.down_since} />` },
        { title: "Called next", of: (each) => html`<${Moment} at=${each.next_call_at} />` },
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
        { title: "Outcome", of: (attempt) => html`<${Badge} state=${attempt.outcome} />` },
        { title: "Ended at", of: (attempt) => html`<${Moment} at=${attempt.ended_at} />` },
        { title: "Host", of: (attempt) => attempt.host },
        { title: "Why", kind: "long", of: (attempt) => gist(attempt.reason) },
      ]} />
    <//>`;
}

const REPROCESS = { none: "none that were processed", failed: "failed ones again", completed: "all again" };

const CHANGEABLE = new Set(["running", "paused"]);

/** How many attempts may be live, no more than the pipeline allows; of a backfill that has not ended, to change. */
function Concurrency({ facts, onDone }) {
  const { max_active_runs: asked, pipeline_max_active_runs: allowed } = facts;
  const [typed, setTyped] = useState(null);
  if (!CHANGEABLE.has(facts.state)) return number(asked);
  const change = () => post(`/api/v1/backfills/${encodeURIComponent(facts.id)}/change`, { max_active_runs: Number(typed) });
  const changed = (error) => {
    if (!error) setTyped(null);
    onDone(error, error ? null : `Concurrency: ${typed}. Attempts beyond it go on.`);
  };
  return html`
    <form class="row" onSubmit=${(event) => event.preventDefault()}>
      <input type="number" class="short" min="1" max="10000" required aria-label="Concurrency" value=${typed ?? asked} onInput=${(event) => setTyped(event.target.value)} />
      ${typed !== null && typed !== String(asked) && html`<${Act} kind="small primary" disabled=${!(Number(typed) >= 1)} act=${change} onDone=${changed}>Change<//><button type="button" class="small" onClick=${() => setTyped(null)}>Keep ${number(asked)}</button>`}
      ${asked > allowed && html`<span class="muted">the pipeline allows ${number(allowed)}</span>`}
    </form>`;
}

function Settings({ facts, onDone }) {
  const conf = Object.keys(facts.conf ?? {}).length ? html`<code>${JSON.stringify(facts.conf)}</code>` : null;
  const budget = facts.budget && Object.entries(facts.budget).map(([name, value]) => `${name.replace("_", " ")} ${value}`).join(", ");
  return html`
    <${Section} title="Request">
      <${Facts} of=${[
        ["range", html`<span class="number">${range(facts.range_start, facts.range_end, facts.timezone)}</span> <span class="muted">${facts.timezone}</span>`],
        ["requested", html`<${Moment} at=${facts.requested_at} /> ${facts.triggered_by && html`<span class="muted">by ${facts.triggered_by}</span>`}`],
        ["concurrency", html`<${Concurrency} facts=${facts} onDone=${onDone} />`],
        ["batch size", facts.batch_now ? `now ${facts.batch_now.runs}: ${facts.batch_now.why}` : `${facts.batch_size}${facts.batch_mode === "range" ? ", as one range" : ""}`],
        ["order", facts.run_backwards ? "latest first" : null],
        ["reprocess", REPROCESS[facts.reprocess_behavior]],
        ["excluded", Object.keys(facts.skipped).length ? counts(facts.skipped) : null],
        ["when a run fails", facts.on_run_failure],
        ["undoes", facts.undoes && html`<a href=${`/backfills/${encodeURIComponent(facts.undoes)}`}>${facts.undoes}</a>`],
        ["budget", budget],
        ["changed since its approval", facts.changed_intervals.length ? facts.changed_intervals.slice(0, 10).map((at) => moment(at, facts.timezone)).join(", ") + (facts.changed_intervals.length > 10 ? " …" : "") : null],
        ["conf", conf],
        ["code", facts.latest_code ? "the latest at each start" : facts.code_sha256 && html`<code>${facts.code_sha256.slice(0, 12)}</code>`],
        ["started again", facts.runs_started_again ? plural(facts.runs_started_again, "run") : null],
        ["canceled by", facts.cancel_cause && wordOf(facts.cancel_cause)],
      ]} />
    <//>`;
}
