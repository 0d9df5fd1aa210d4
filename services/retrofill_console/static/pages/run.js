// One run: its tasks, attempts, error, log, deadlines and callbacks.

import { html, useState } from "../vendor/preact.js";
import { post, withQuery } from "../lib/api.js";
import { between, moment, plural, range } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { ACTIVE_BACKFILL, CANCELLABLE, LIVE_ATTEMPT } from "../lib/states.js";
import { Act, Badge, Choice, Confirm, Facts, Fault, Loaded, Moment, Notice, Section, Table, Trouble, gist } from "../parts/parts.js";
import { CallbackTable } from "./callbacks.js";
import { DeadlineTable } from "./deadlines.js";
import { Graph } from "./graph.js";
import { Log } from "./log.js";
import { asBound } from "./selection.js";
import { Timeline } from "./timeline.js";

export function Run({ id }) {
  const [outcome, setOutcome] = useState({});
  const found = useData(`/api/v1/runs/${encodeURIComponent(id)}`, { concerns: (event) => String(event.run_id) === id || event.type === "RunsRetried", every: 10_000 });
  const run = found.data;
  useFocus(run ? run.backfill_id : undefined);
  useTitle(run ? `${moment(run.interval_start, run.timezone)} ${run.pipeline}` : `Run ${id}`);
  return html`
    <p class="crumbs"><a href="/">Backfills</a> ${run && html`<a href=${`/backfills/${encodeURIComponent(run.backfill_id)}`}>${run.pipeline} <span class="id">${run.backfill_id}</span></a>`}</p>
    <${Loaded} of=${found}>${(facts) => html`
      <div class="page-head">
        <h1>${moment(facts.interval_start, facts.timezone)} <span class="id">run ${facts.id}</span></h1>
        <${Badge} state=${facts.state} />
        ${facts.superseded_by && html`<a href=${`/runs/${facts.superseded_by}`}>retried as run ${facts.superseded_by}</a>`}
        <span class="spring"></span>
        <${Actions} run=${facts} onDone=${(error, said) => { setOutcome({ error, said }); found.refresh(); }} />
      </div>
      <${Trouble} error=${outcome.error} />
      ${outcome.said && html`<${Notice}>${outcome.said}<//>`}
      <${Facts} of=${factsOf(facts)} />
      <${Tasks} run=${facts} />
      <${Faults} run=${facts} />
      <${Section} title="Timeline"><${Timeline} run=${facts} /><//>
      <${Attempts} run=${facts} />
      <${Log} key=${facts.id} run=${facts} />
      <${History} run=${facts} />
      ${facts.deadlines.length > 0 && html`<${Section} title="Deadlines"><${DeadlineTable} rows=${facts.deadlines} of="run" /><//>`}
      ${facts.callbacks.length > 0 && html`<${Section} title="Callbacks"><${CallbackTable} rows=${facts.callbacks} of="run" /><//>`}`}
    <//>`;
}

/** What can be done to one run. Of an ended backfill, or of one that succeeded, the interval is requested again. */
function Actions({ run, onDone }) {
  const [asking, setAsking] = useState(false);
  const active = ACTIVE_BACKFILL.has(run.backfill_state) && run.backfill_state !== "cancelling";
  const command = (name) => post(`/api/v1/runs/${name}`, { backfill_id: run.backfill_id, ids: [run.id] });
  const cancel = async () => {
    setAsking(false);
    try {
      await command("cancel");
      onDone(null, "Canceling: the run ends as soon as its driver stops.");
    } catch (error) {
      onDone(error, null);
    }
  };
  const day = asBound(Date.parse(run.interval_start) / 1000, run.timezone);
  const again = withQuery("/new", { pipeline: run.pipeline, from: day, to: day, reprocess: "completed" });
  const ended = run.finished_at !== null && !run.superseded_by;
  return html`
    <div class="row" role="group" aria-label="Actions">
      ${active && run.state === "failed" && !run.superseded_by && html`<${Act} kind="primary" act=${() => command("retry")} onDone=${(error) => onDone(error, error ? null : "Retrying: a new run takes its place.")}>Retry<//>`}
      ${active && CANCELLABLE.has(run.state) && (run.cancel_requested_at ? html`<span class="muted">cancel requested <${Moment} at=${run.cancel_requested_at} /></span>` : html`<button type="button" class="danger" onClick=${() => setAsking(true)}>Cancel</button>`)}
      ${ended && (!active || run.state !== "failed") && html`<a class="button" href=${again}>Run again…</a>`}
      ${asking && html`<${Confirm} question="Cancel this run? The backfill's other runs go on." yes="Cancel it" onYes=${cancel} onNo=${() => setAsking(false)} />`}
    </div>`;
}

const times = (count) => (count === 0 ? "not yet" : count === 1 ? "once" : `${count} times`);

const factsOf = (run) => [
  ["interval", html`<span class="number">${range(run.interval_start, run.interval_end, run.timezone)}</span> <span class="muted">${run.timezone}</span>`],
  ["begun", times(run.attempt)],
  ["queued", html`<${Moment} at=${run.queued_at} />`],
  ["started", run.started_at && html`<${Moment} at=${run.started_at} />`],
  ["finished", run.finished_at && html`<${Moment} at=${run.finished_at} /> <span class="muted">took ${between(run.started_at, run.finished_at)}</span>`],
  ["retried alone since", run.lost_at && html`<${Moment} at=${run.lost_at} />`],
  ["after a split", run.range_limit ? `at most ${plural(run.range_limit, "run")} a batch` : null],
  ["code", run.code_sha256 && html`<code>${run.code_sha256.slice(0, 12)}</code>`],
  ["output", run.outputs?.folders?.length ? html`<ul class="plain">${run.outputs.folders.map((output) => html`<li key=${output}>${outputOf(output, run.state === "succeeded")}</li>`)}</ul>` : null],
];

// Of the rows of a table, as `retrofill.protocol.table_output` writes it.
const TABLE = "table:";

/** The path of a folder, or a table with where its rows are until they are `published`. */
export function outputOf(text, published = false) {
  if (!text.startsWith(TABLE)) return html`<code>${text}</code>`;
  const [name, query] = text.slice(TABLE.length).split("?");
  const more = new URLSearchParams(query);
  return html`<code>${decodeURIComponent(name)}</code> <span class="muted">${more.get("format")}${published ? "" : html`, staged in <code>${more.get("staged")}</code>`}</span>`;
}

function Tasks({ run }) {
  const begun = [...new Set(run.tasks.map((task) => task.attempt))].sort((a, b) => b - a);
  const [chosen, setChosen] = useState(null);
  const time = chosen ?? run.attempt;
  const places = new Map((run.graph ?? []).map(({ name }, n) => [name, n]));
  const mine = run.tasks.filter((task) => task.attempt === time).sort((a, b) => places.get(a.task) - places.get(b.task));
  const aside = begun.length > 1 && html`<${Choice} name="time" label="Which time it began" value=${time} options=${begun.map((n) => [n, `time ${n}`])} onChange=${setChosen} />`;
  return html`
    <${Section} title="Tasks" aside=${aside}>
      <${Graph} graph=${run.graph ?? []} tasks=${mine} />
      <${Table} label="Tasks" rows=${mine} keyOf=${(task) => task.task} empty="no task has begun" columns=${[
        { title: "Task", of: (task) => html`<strong>${task.task}</strong>` },
        { title: "State", of: (task) => html`<${Badge} state=${task.state} />` },
        { title: "Tries", kind: "number", of: (task) => task.try_number },
        { title: "Started", of: (task) => html`<${Moment} at=${task.started_at} />` },
        { title: "Took", kind: "number", of: (task) => between(task.started_at, task.finished_at) },
      ]} />
    <//>`;
}

/** Its error, and those of its tasks, each once. */
function Faults({ run }) {
  const seen = new Set();
  const all = run.tasks.filter((task) => task.attempt === run.attempt && task.error).map((task) => [`task ${task.task}:`, task.error]);
  if (run.error) all.push([null, run.error]);
  const shown = all.filter(([, error]) => !seen.has(JSON.stringify(error)) && seen.add(JSON.stringify(error)));
  if (shown.length === 0 && run.losses.length === 0) return null;
  return html`
    <${Section} title="Errors">
      ${shown.map(([what, error], n) => html`<${Fault} key=${n} what=${what} error=${error} />`)}
      ${run.losses.map((loss) => html`<p key=${loss.attempt}>Time ${loss.attempt}: the driver was lost: ${loss.reason}${loss.counted === false ? html` <span class="muted">(not counted)</span>` : ""}</p>`)}
    <//>`;
}

function Attempts({ run }) {
  return html`
    <${Section} title="Attempts">
      <${Table} label="Attempts" rows=${[...run.attempts].reverse()} keyOf=${(attempt) => attempt.id} empty="no driver took it yet" columns=${[
        { title: "Attempt", kind: "number", of: (attempt) => attempt.id },
        { title: "State", of: (attempt) => html`<${Badge} state=${attempt.outcome ?? attempt.state} />` },
        { title: "Runs", of: (attempt) => (attempt.mode === "publish" ? "publishes" : attempt.runs === 1 ? "1" : `${attempt.runs}${attempt.mode === "range" ? ", as one range" : ""}`) },
        { title: "Host", of: (attempt) => attempt.host },
        { title: "Claimed", of: (attempt) => html`<${Moment} at=${attempt.claimed_at} />` },
        { title: "Took", kind: "number", of: took },
        { title: "Spark", of: (attempt) => (attempt.spark_ui && LIVE_ATTEMPT.has(attempt.state) ? html`<a href=${attempt.spark_ui} target="_blank" rel="noreferrer">${attempt.spark_app_id ?? "open"}</a>` : attempt.spark_app_id ?? "–") },
        { title: "Why", kind: "long", of: (attempt) => gist(attempt.reason) },
      ]} />
    <//>`;
}

/** From its beginning, or, if that was reported with its end, at most so long. */
function took({ claimed_at: claimed, began_at: began, ended_at: ended }) {
  if (!began) return "–";
  if (!ended) return `${between(began, new Date().toISOString())} so far`;
  return began === ended ? `≤ ${between(claimed, ended)}` : between(began, ended);
}

/** Who processed its interval when, and what that published: the last one is what readers see. */
function History({ run }) {
  if (run.history.length === 0) return null;
  return html`
    <${Section} title="History of the interval">
      <${Table} label="History of the interval" rows=${[...run.history].reverse()} keyOf=${(each) => each.run_id} columns=${[
        { title: "Run", kind: "number", of: (each) => (each.run_id === run.id ? each.run_id : html`<a href=${`/runs/${each.run_id}`}>${each.run_id}</a>`) },
        { title: "Interval", of: (each) => html`<span class="number" title=${run.timezone}>${range(each.interval_start, each.interval_end, run.timezone)}</span>` },
        { title: "State", of: (each) => html`<${Badge} state=${each.state} />` },
        { title: "Backfill", of: (each) => html`<a href=${`/backfills/${encodeURIComponent(each.backfill_id)}`}><span class="id">${each.backfill_id}</span></a>` },
        { title: "By", of: (each) => each.triggered_by },
        { title: "Finished", of: (each) => html`<${Moment} at=${each.finished_at} />` },
        { title: "Code", of: (each) => (each.code_sha256 ? html`<code>${each.code_sha256.slice(0, 12)}</code>` : "–") },
        { title: "Published", of: (each) => (each.published.length ? html`<ul class="plain">${each.published.map((output) => html`<li key=${output.name}><code>${output.name}</code>${output.version ? ` version ${output.version}` : ""}</li>`)}</ul>` : "–") },
      ]} />
    <//>`;
}
