// What can be done to a whole backfill.

import { html, useState } from "../vendor/preact.js";
import { post } from "../lib/api.js";
import { number } from "../lib/format.js";
import { ACTIVE_BACKFILL } from "../lib/states.js";
import { go } from "../router.js";
import { Act, Confirm } from "../parts/parts.js";

export function Actions({ facts, onDone }) {
  const [asking, setAsking] = useState(false);
  const [undoing, setUndoing] = useState(false);
  const path = `/api/backfills/${encodeURIComponent(facts.id)}`;
  const active = ACTIVE_BACKFILL.has(facts.state);
  const failed = facts.by_state.failed ?? 0;
  const unfinished = facts.runs - ["succeeded", "failed", "cancelled"].reduce((sum, state) => sum + (facts.by_state[state] ?? 0), 0);
  const told = (said) => (error) => onDone(error, error ? null : said);
  const retried = (error, answer) => {
    if (!error && answer.id !== facts.id) go(`/backfills/${encodeURIComponent(answer.id)}`);
    else onDone(error, error ? null : `Retrying ${number(failed)} failed runs.`);
  };
  const again = facts.ended_at ? failed + (facts.by_state.cancelled ?? 0) : failed;
  const cancel = async () => {
    setAsking(false);
    try {
      await post(`${path}/cancel`);
      onDone(null, "Cancelling: runs that have not ended end now.");
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
        <${Act} kind="primary" act=${() => post(`${path}/publish`)} onDone=${told("Approved: what is staged is being published.")}>Publish<//>
        <${Act} act=${() => post(`${path}/discard`)} onDone=${told("Discarded: nothing of it is published.")}>Discard<//>`}
      ${again > 0 && facts.state !== "cancelling" && html`<${Act} act=${() => post(`${path}/retry`)} onDone=${retried}>${facts.ended_at ? "Request again what failed" : "Retry failed"}<//>`}
      ${active && facts.state !== "cancelling" && html`<button type="button" class="danger" onClick=${() => setAsking(true)}>Cancel</button>`}
      ${facts.ended_at && succeeded > 0 && !facts.undoes && html`<button type="button" onClick=${() => setUndoing(true)}>Undo</button>`}
      ${undoing && html`<${Confirm} question=${`Restore what ${number(succeeded)} runs replaced? What was published again since stays.`} yes="Undo them" onYes=${undo} onNo=${() => setUndoing(false)} />`}
      ${asking && html`<${Confirm} question=${`Cancel ${number(unfinished)} runs that have not ended? What succeeded stays.`} yes="Cancel them" onYes=${cancel} onNo=${() => setAsking(false)} />`}
    </div>`;
}
