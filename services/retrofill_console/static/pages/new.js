// Creates a backfill: a form, and beside it what the request would do now.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { post } from "../lib/api.js";
import { plural } from "../lib/format.js";
import { useData, useTitle } from "../lib/hooks.js";
import { go } from "../router.js";
import { Calendar } from "../parts/calendar.js";
import { Act, Loaded, Trouble } from "../parts/parts.js";
import { DryRun } from "./dry-run.js";
import { Options } from "./options.js";
import { EMPTY, requestOf } from "./request.js";

// Typing is not over before the keys rest this long.
const REST_MS = 300;

export function New({ query }) {
  const pipelines = useData("/api/v1/pipelines", { concerns: (event) => event.topic === "pipeline-events" });
  useTitle("New backfill");
  return html`
    <div class="page-head"><h1>New backfill</h1></div>
    <${Loaded} of=${pipelines}>${(rows) =>
      rows.length === 0
        ? html`<p class="empty">No pipeline is applied yet: <code>retrofill pipelines apply FILE</code></p>`
        : html`<${Form} pipelines=${rows} query=${query} />`}
    <//>`;
}

function Form({ pipelines, query }) {
  const [form, setForm] = useState(() => ({
    ...EMPTY,
    pipeline: query.get("pipeline") ?? pipelines[0].name,
    from: query.get("from") ?? "",
    to: query.get("to") ?? "",
    reprocess_behavior: query.get("reprocess") ?? EMPTY.reprocess_behavior,
  }));
  const [problem, setProblem] = useState(null);
  // The id of the last request until it is answered: a second click is the same request.
  const asked = useRef({ id: null, text: null });
  const change = (values) => setForm((last) => ({ ...last, ...values }));
  const pipeline = pipelines.find(({ name }) => name === form.pipeline) ?? null;
  const { body, error } = requestOf(form);
  const preview = usePreview(error ? null : body);
  const request = async () => {
    const text = JSON.stringify(body);
    if (asked.current.text !== text) asked.current = { id: globalThis.crypto.randomUUID?.(), text };
    try {
      return await post("/api/v1/backfills", { ...body, id: body.id ?? asked.current.id });
    } catch (error) {
      if (!error.passes) asked.current = { id: null, text: null }; // refused, and recorded with this id
      throw error;
    }
  };
  const done = (failed, answer) => (failed ? setProblem(failed) : go(`/backfills/${encodeURIComponent(answer.id)}`));
  const runs = preview.found?.accepted ? preview.found.runs : null;
  return html`
    <div class="new">
      <form onSubmit=${(event) => event.preventDefault()}>
        <label class="field">Pipeline
          <select value=${form.pipeline} onChange=${(event) => change({ pipeline: event.target.value })}>
            ${!pipeline && html`<option value=${form.pipeline}>${form.pipeline} (not applied)</option>`}
            ${pipelines.map(({ name, schedule }) => html`<option key=${name} value=${name}>${name} · ${schedule}</option>`)}
          </select>
        </label>
        <fieldset>
          <legend>Logical dates${pipeline ? html` <span class="muted">${pipeline.timezone}, both inclusive</span>` : ""}</legend>
          <div class="row">
            <label class="field">From<input value=${form.from} placeholder="2024-01-01" onInput=${(event) => change({ from: event.target.value })} /></label>
            <label class="field">To<input value=${form.to} placeholder="2024-01-31" onInput=${(event) => change({ to: event.target.value })} /></label>
          </div>
          <${Calendar} from=${form.from} to=${form.to} first=${pipeline?.start} last=${pipeline?.end} onChange=${change} />
        </fieldset>
        <${Options} form=${form} pipeline=${pipeline} change=${change} />
      </form>
      <div class="beside" aria-label="Dry run" role="region">
        <${DryRun} preview=${preview} problem=${error} zone=${pipeline?.timezone} />
        <${Trouble} error=${problem} />
        <div class="row end">
          <${Act} kind="primary large" disabled=${runs === null || preview.stale} act=${request} onDone=${done}>${runs === null ? "Create backfill" : `Create ${plural(runs, "run")}`}<//>
        </div>
      </div>
    </div>`;
}

/** What the planner would decide now: {found, error, stale}; `stale` while another request is looked at. */
function usePreview(body) {
  const [shown, setShown] = useState({ found: null, error: null, of: null });
  const text = body && JSON.stringify(body);
  useEffect(() => {
    if (text === null) return undefined;
    const control = new AbortController();
    const timer = setTimeout(async () => {
      try {
        setShown({ found: await post("/api/v1/preview", JSON.parse(text), control.signal), error: null, of: text });
      } catch (error) {
        if (error.name !== "AbortError") setShown({ found: null, error, of: text });
      }
    }, REST_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [text]);
  return { ...(text === null ? { found: null, error: null } : shown), stale: text !== shown.of };
}
