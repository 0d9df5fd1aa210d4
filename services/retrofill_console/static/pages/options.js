// The options of a backfill, with what holds if they are left alone.

import { html } from "../vendor/preact.js";

const REPROCESS = [
  ["none", "Only intervals that were never processed"],
  ["failed", "Those, and intervals whose last run failed"],
  ["completed", "All intervals, also those that succeeded"],
];
const ON_FAILURE = [["continue", "go on"], ["pause", "pause the backfill"], ["cancel", "cancel the rest"]];

export function Options({ form, pipeline, change }) {
  const text = (name) => ({ value: form[name], onInput: (event) => change({ [name]: event.target.value }) });
  const check = (name) => ({ type: "checkbox", checked: form[name], onChange: (event) => change({ [name]: event.target.checked }) });
  return html`
    <fieldset>
      <legend>Which to run</legend>
      ${REPROCESS.map(([value, words]) => html`<label key=${value} class="option"><input type="radio" name="reprocess" value=${value} checked=${form.reprocess_behavior === value} onChange=${() => change({ reprocess_behavior: value })} />${words}</label>`)}
    </fieldset>
    <div class="row">
      <label class="field">Concurrency<input type="number" min="1" max="10000" placeholder=${pipeline?.max_active_runs ?? ""} ...${text("max_active_runs")} /></label>
      <label class="field">Batch size<input type="number" min="1" placeholder=${pipeline?.batch_size ?? ""} ...${text("batch_size")} /></label>
      <label class="field">When a run fails
        <select value=${form.on_run_failure} onChange=${(event) => change({ on_run_failure: event.target.value })}>
          ${ON_FAILURE.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}
        </select>
      </label>
    </div>
    <label class="field"><span>Conf <span class="muted">a JSON object for the tasks</span></span><textarea rows="2" spellcheck=${false} placeholder='{"out": "/data/orders"}' ...${text("conf")}></textarea></label>
    <details>
      <summary>More options</summary>
      <label class="option"><input ...${check("run_backwards")} />Latest interval first</label>
      <label class="option"><input ...${check("review")} />Publish only after a review</label>
      <label class="option"><input ...${check("latest_code")} />Each run uses the code applied last when it starts</label>
      <div class="row">
        <label class="field"><span>Done by <span class="muted">your time</span></span><input type="datetime-local" ...${text("finish_by")} /></label>
        <label class="field">Id<input placeholder="a new one" ...${text("id")} /></label>
      </div>
      <fieldset>
        <legend>Budget <span class="muted">pause when a limit is reached</span></legend>
        <div class="row">
          <label class="field">Failed runs<input type="number" min="1" placeholder="no limit" ...${text("budget_failed_runs")} /></label>
          <label class="field">Core-hours<input type="number" min="0" step="any" placeholder="no limit" ...${text("budget_core_hours")} /></label>
          <label class="field"><span>Until <span class="muted">your time</span></span><input type="datetime-local" ...${text("budget_until")} /></label>
        </div>
      </fieldset>
    </details>`;
}
