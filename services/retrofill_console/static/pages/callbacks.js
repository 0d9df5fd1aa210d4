// Callbacks: who was called, and failed ones to call again.

import { html, useState } from "../vendor/preact.js";
import { post, withQuery } from "../lib/api.js";
import { number, plural } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { go } from "../router.js";
import { Act, Badge, Brief, Choice, Loaded, Moment, Notice, Table, Trouble } from "../parts/parts.js";

// Each waits for its answer.
const AT_A_TIME = 20;
const STATES = [["", "All"], ["pending", "Pending"], ["running", "Running"], ["failed", "Failed"], ["succeeded", "Succeeded"], ["dropped", "Dropped"]];

export function Callbacks({ query }) {
  const state = query.get("state") ?? "";
  const [outcome, setOutcome] = useState({});
  useTitle("Callbacks");
  useFocus(null);
  const found = useData(withQuery("/api/v1/callbacks", { state, limit: 200 }), { concerns: ({ topic }) => topic === "callback-events", every: 15_000 });
  const failed = (found.data ?? []).filter((row) => row.state === "failed").map((row) => row.deadline_id);
  const replay = (ids) => async () => {
    const results = [];
    for (let n = 0; n < ids.length; n += AT_A_TIME) results.push(...(await post("/api/v1/callbacks/replay", { ids: ids.slice(n, n + AT_A_TIME) })).results);
    return { results };
  };
  const done = (error, answer) => {
    setOutcome({ error: error ?? firstError(answer), said: error || firstError(answer) ? null : `${plural(answer.results.length, "callback")} called again.` });
    found.refresh();
  };
  return html`
    <div class="page-head">
      <h1>Callbacks</h1><span class="spring"></span>
      ${failed.length > 1 && html`<${Act} act=${replay(failed)} onDone=${done}>Call ${number(failed.length)} failed again<//>`}
      <${Choice} name="state" label="State" value=${state} options=${STATES} onChange=${(next) => go(withQuery("/callbacks", { state: next }), { replace: true })} />
    </div>
    <${Trouble} error=${outcome.error} />
    ${outcome.said && html`<${Notice}>${outcome.said}<//>`}
    <${Loaded} of=${found}>${(rows) => html`<${CallbackTable} rows=${rows} replay=${replay} onDone=${done} />`}<//>`;
}

export const firstError = ({ results }) => {
  const refused = results.find((each) => each.error);
  return refused ? { message: refused.error } : null;
};

export function CallbackTable({ rows, of = null, replay = null, onDone = null }) {
  const columns = [
    { title: "State", of: (row) => html`<${Badge} state=${row.state} />` },
    { title: "Calls", of: (row) => html`<strong>${row.name}</strong> <span class="muted">${row.kind}</span>` },
    { title: "On", of: (row) => (row.occasion ? row.occasion.replaceAll("_", " ") : `deadline ${row.alert}`) },
    ...(of === "run" ? [] : [
      { title: "Pipeline", of: (row) => row.pipeline },
      { title: "For", of: (row) => (row.run_id ? html`<a href=${`/runs/${row.run_id}`}>run ${row.run_id}</a>` : html`<a href=${`/backfills/${encodeURIComponent(row.backfill_id)}`}><span class="id">${row.backfill_id}</span></a>`) },
    ]),
    { title: "Tries", kind: "number", of: (row) => row.attempts },
    { title: "Next or end", of: (row) => (row.state === "pending" && row.receiver_down_since ? html`<span>after its receiver, down since <${Moment} at=${row.receiver_down_since} /></span>` : html`<${Moment} at=${row.state === "pending" ? row.next_try_at : row.finished_at} />`) },
    { title: "Last error", kind: "long", of: (row) => html`<${Brief} text=${row.last_error} />` },
    ...(replay ? [{ title: "", of: (row) => row.state === "failed" && html`<${Act} kind="small" act=${replay([row.deadline_id])} onDone=${onDone}>Call again<//>` }] : []),
  ];
  return html`<${Table} label="Callbacks" rows=${rows} keyOf=${(row) => row.deadline_id} empty="no callbacks" columns=${columns} />`;
}
