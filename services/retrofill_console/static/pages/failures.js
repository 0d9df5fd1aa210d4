// The failed runs of a backfill, by their errors.

import { html } from "../vendor/preact.js";
import { post } from "../lib/api.js";
import { moment, number, plural, range } from "../lib/format.js";
import { ACTIVE_BACKFILL } from "../lib/states.js";
import { Act, Fault, Section, gist } from "../parts/parts.js";

export function Failures({ facts, onDone }) {
  if (facts.failures.length === 0) return null;
  const hidden = (facts.by_state.failed ?? 0) - facts.failures.reduce((sum, each) => sum + each.runs, 0);
  return html`
    <${Section} title="Failed runs">
      <div class="failures">${facts.failures.map((each) => html`<${Failure} key=${each.named[0].id} of=${each} facts=${facts} onDone=${onDone} />`)}</div>
      ${hidden > 0 && html`<p class="muted">and ${number(hidden)} more with other errors: choose the state “failed” in the table of intervals</p>`}
    <//>`;
}

function Failure({ of, facts, onDone }) {
  const { example, named } = of;
  const day = (at) => moment(at, facts.timezone);
  const retryable = ACTIVE_BACKFILL.has(facts.state) && facts.state !== "cancelling" && named.length === of.runs;
  const retry = () => post("/api/v1/runs/retry", { backfill_id: facts.id, ids: named.map(({ id }) => id) });
  return html`
    <div class="failure">
      ${of.runs === 1
        ? html`<a href=${`/runs/${example.id}`}>${day(example.interval_start)}</a>`
        : html`<span><strong class="number">${plural(of.runs, "run")}</strong> <span class="muted number">${range(named[0].interval_start, of.range_end, facts.timezone)}</span></span>`}
      <details>
        <summary>${of.task && html`<span class="muted">${of.task}: </span>`}${of.type ? `${of.type}: ${of.message}` : "no error is recorded"}</summary>
        ${of.runs > 1 && html`<ul class="named">${named.map((run) => html`<li key=${run.id}><a href=${`/runs/${run.id}`}>${day(run.interval_start)}</a></li>`)}${named.length < of.runs && html`<li class="muted">and ${number(of.runs - named.length)} more</li>`}</ul>
          <p class="muted">The first of them:</p>`}
        ${example.failed_tasks.map((task) => html`<${Fault} key=${task.task} error=${task.error ?? { type: "no error is recorded" }} what=${`${task.task}, try ${task.try_number}:`} />`)}
        ${example.failed_tasks.length === 0 && example.error && html`<${Fault} error=${example.error} />`}
        ${example.losses.map((loss) => html`<p key=${loss.attempt} class="muted">Time ${loss.attempt}: the driver was lost: ${gist(loss.reason)}</p>`)}
      </details>
      ${retryable && html`<${Act} kind="small" act=${retry} onDone=${(error, answer) => onDone(error, error ? null : `Retrying ${plural(answer.runs, "run")}.`)}>Retry<//>`}
    </div>`;
}
