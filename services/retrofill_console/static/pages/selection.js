// What can be done with a range of intervals that was selected in the grid.

import { html, useState } from "../vendor/preact.js";
import { post, withQuery } from "../lib/api.js";
import { counts, moment, number, plural, range } from "../lib/format.js";
import { ACTIVE_BACKFILL, CANCELLABLE } from "../lib/states.js";
import { Act, Confirm } from "../parts/parts.js";

// The most that one command takes.
const MOST = 1000;

export function Selection({ facts, data, selection, onClear, onDone }) {
  const [asking, setAsking] = useState(false);
  if (selection === null) return html`<p class="hint-line muted">Drag over intervals to select a range, or hold Shift with the arrow keys; a click opens the run.</p>`;
  const [from, to] = selection;
  const byState = data.counts(from, to + 1);
  const idsOf = (wanted) => {
    const ids = [];
    for (let n = from; n <= to; n += 1) if (data.runs[n] && wanted(data.state(n))) ids.push(data.runs[n]);
    return ids;
  };
  const failed = idsOf((state) => state === "failed");
  const open = idsOf((state) => CANCELLABLE.has(state));
  const active = ACTIVE_BACKFILL.has(facts.state);
  const staged = (wanted) => data.starts.filter((_, n) => data.state(n) === "staged" && wanted(n));
  const inside = facts.state === "in_review" ? staged((n) => n >= from && n <= to) : [];
  const outside = inside.length > 0 ? staged((n) => n < from || n > to) : [];
  const publish = (starts) => async () => {
    await publishSome(facts, starts.map((start) => new Date(start * 1000).toISOString()));
    return plural(starts.length, "run");
  };
  const again = withQuery("/new", { pipeline: facts.pipeline, from: asBound(data.starts[from], data.timezone), to: asBound(data.starts[to], data.timezone), reprocess: "completed" });
  const command = async (name, ids) => {
    setAsking(false);
    const left = {};
    let done = 0, first = null;
    for (let n = 0; n < ids.length && !first?.passes; n += MOST) {
      try {
        const answer = await post(`/api/v1/runs/${name}`, { backfill_id: facts.id, ids: ids.slice(n, n + MOST) });
        done += answer.runs;
        for (const [state, number] of Object.entries(answer.left)) left[state] = (left[state] ?? 0) + number;
      } catch (error) {
        first ??= error; // others may be accepted
      }
    }
    if (first === null) return Object.keys(left).length ? `${plural(done, "run")}; others stay as they are: ${counts(left)}` : plural(done, "run");
    throw done ? new Error(`${plural(done, "run")} accepted, but not the others: ${first.message}`) : first;
  };
  const told = (verb) => (error, runs) => onDone(error, error ? null : `${verb} ${runs}.`);
  const cancel = () => command("cancel", open).then((runs) => told("Canceling")(null, runs), told(""));
  return html`
    <div class="selection row" role="group" aria-label="Selected intervals">
      <strong>${plural(to - from + 1, "interval")}</strong>
      <span class="number">${range(data.starts[from], data.endOf(to), data.timezone)}</span>
      <span class="muted">${counts(byState)}</span>
      <span class="spring"></span>
      ${inside.length > 0 && html`<${Act} kind="primary" act=${publish(inside)} onDone=${told("Publishing")}>Publish these ${number(inside.length)}<//>`}
      ${outside.length > 0 && html`<${Act} act=${publish(outside)} onDone=${told("Publishing")}>Publish all but these<//>`}
      ${active && failed.length > 0 && html`<${Act} act=${() => command("retry", failed)} onDone=${told("Retrying")}>Retry ${number(failed.length)} failed<//>`}
      ${active && open.length > 0 && html`<button type="button" class="danger" onClick=${() => setAsking(true)}>Cancel ${number(open.length)}</button>`}
      ${html`<a class="button" href=${again}>Run again…</a>`}
      <button type="button" onClick=${onClear}>Clear</button>
      ${asking && html`<${Confirm} question=${`Cancel ${plural(open.length, "run")}? The backfill's other runs go on.`} yes="Cancel them" onYes=${cancel} onNo=${() => setAsking(false)} />`}
    </div>`;
}

/** Publish some of the runs of a backfill in review; the others wait for the next one. */
export const publishSome = (facts, intervals) => post(`/api/v1/backfills/${encodeURIComponent(facts.id)}/publish`, { review: facts.review, intervals });

/** A logical date as requests name it: a day, or a moment where days have several. */
export function asBound(seconds, zone) {
  const text = moment(seconds, zone);
  return text.length === 10 ? text : new Date(seconds * 1000).toISOString().replace(".000Z", "+00:00");
}
