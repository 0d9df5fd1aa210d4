// What can be done to a whole backfill.

import { html, useState } from "../vendor/preact.js";
import { post } from "../lib/api.js";
import { plural } from "../lib/format.js";
import { ACTIVE_BACKFILL } from "../lib/states.js";
import { go } from "../router.js";
import { Act, Confirm } from "../parts/parts.js";

export function Actions({ facts, onDone }) {
  const [asking, setAsking] = useState(false);
  const [undoing, setUndoing] = useState(false);
  const [forcing, setForcing] = useState(false);
  const path = `/api/v1/backfills/${encodeURIComponent(facts.id)}`;
  const active = ACTIVE_BACKFILL.has(facts.state);
  const failed = facts.by_state.failed ?? 0;
  const unfinished = facts.runs - ["succeeded", "failed", "cancelled"].reduce((sum, state) => sum + (facts.by_state[state] ?? 0), 0);
  const told = (said) => (error) => onDone(error, error ? null : said);
  const retried = (error, answer) => {
    if (!error && answer.id !== facts.id && !answer.note) go(`/backfills/${encodeURIComponent(answer.id)}`);
    else if (!error && answer.note) onDone(null, html`${answer.note}: <a href=${`/backfills/${encodeURIComponent(answer.id)}`}>the new backfill</a>`);
    else onDone(error, error ? null : `Retrying ${plural(failed, "failed run")}.`);
  };
  const again = facts.ended_at ? failed + (facts.by_state.cancelled ?? 0) : failed;
  const cancel = async () => {
    setAsking(false);
    try {
      await post(`${path}/cancel`);
      onDone(null, "Canceling: runs that have not ended end now.");
    } catch (error) {
      onDone(error, null);
    }
  };
  const publish = (force) => post(`${path}/publish`, { force, review: facts.review });
  const changed = facts.changed_intervals.length;
  const force = async () => {
    setForcing(false);
    try {
      await publish(true);
      onDone(null, "Approved: what is staged is being published, also over what others have changed.");
    } catch (error) {
      onDone(error, null);
    }
  };
  const undo = async () => {
    setUndoing(false);
    try {
      const answer = await post(`${path}/undo`);
      go(`/backfills/${encodeURIComponent(answer.id)}`);
    } catch (error) {
      onDone(error, null);
    }
  };
  const succeeded = facts.by_state.succeeded ?? 0;
  return html`
    <div class="row" role="group" aria-label="Actions">
      ${facts.state === "running" && html`<${Act} act=${() => post(`${path}/pause`)} onDone=${told("Paused: live runs finish, no others start.")}>Pause<//>`}
      ${facts.state === "paused" && html`<${Act} kind="primary" act=${() => post(`${path}/resume`)} onDone=${told("Resumed.")}>Resume<//>`}
      ${facts.state === "in_review" && html`
        <${Act} kind="primary" act=${() => publish(false)} onDone=${told("Approved: what is staged is being published.")}>Publish<//>
        ${changed > 0 && html`<button type="button" onClick=${() => setForcing(true)}>Publish over changes</button>`}
        <${Act} act=${() => post(`${path}/discard`)} onDone=${told("Discarded: nothing of it is published.")}>Discard<//>`}
      ${again > 0 && facts.state !== "cancelling" && html`<${Act} act=${() => post(`${path}/retry`)} onDone=${retried}>${facts.ended_at ? "Request again what failed" : "Retry failed"}<//>`}
      ${active && facts.state !== "cancelling" && html`<button type="button" class="danger" onClick=${() => setAsking(true)}>Cancel</button>`}
      ${facts.ended_at && succeeded > 0 && !facts.undoes && html`<button type="button" onClick=${() => setUndoing(true)}>Undo</button>`}
      ${forcing && html`<${Confirm} question=${`Publish over whatever others change in ${plural(changed, "interval")}?`} yes="Publish over it" onYes=${force} onNo=${() => setForcing(false)} />`}
      ${undoing && html`<${Confirm} question=${`Restore what ${plural(succeeded, "run")} replaced? What was published again since stays.`} yes="Undo them" onYes=${undo} onNo=${() => setUndoing(false)} />`}
      ${asking && html`<${Confirm} question=${`Cancel ${plural(unfinished, "run")} that ${unfinished === 1 ? "has" : "have"} not ended? What succeeded stays.`} yes="Cancel them" onYes=${cancel} onNo=${() => setAsking(false)} />`}
    </div>`;
}
