// What a request would do: runs, what is excluded and why, how long it takes, and the same for a terminal.

import { html, useMemo, useState } from "../vendor/preact.js";
import { counts, duration, moment, number, plural, range } from "../lib/format.js";
import { GridData } from "../grid/data.js";
import { Grid } from "../grid/grid.js";
import { Legend } from "../grid/legend.js";
import { Badge, Choice, CopyButton, Notice, Table, Trouble } from "../parts/parts.js";

export function DryRun({ preview: { found, error, stale }, problem, zone }) {
  if (problem !== null) return html`<div class="card"><h2>Dry run</h2><p class="empty">${problem}</p></div>`;
  if (error) return html`<div class="card"><h2>Dry run</h2><${Trouble} error=${error} /></div>`;
  if (found === null) return html`<div class="card"><h2>Dry run</h2><p class="empty" aria-busy="true">Looking…</p></div>`;
  return html`
    <div class=${stale ? "card stale" : "card"} aria-live="polite">
      <h2>Dry run</h2>
      ${found.accepted ? html`<${Accepted} found=${found} />` : html`<${Refused} found=${found} zone=${zone} />`}
    </div>
    <${Copies} found=${found} />`;
}

function Accepted({ found }) {
  const { estimate, core_hours: hours, why } = found.expected;
  const excluded = Object.keys(found.skipped).length ? counts(found.skipped) : null;
  return html`
    <dl class="figures">
      <div><dt>runs</dt><dd>${number(found.runs)}</dd><dd class="note">${excluded ? `excluded: ${excluded}` : "none excluded"}</dd></div>
      <div><dt>takes about</dt><dd>${estimate ? duration(estimate.seconds) : "–"}</dd><dd class="note">${estimate ? `${duration(estimate.low)} to ${duration(estimate.high)}` : ""}</dd></div>
      ${hours !== null && html`<div><dt>core-hours</dt><dd>${hours.toFixed(2)}</dd></div>`}
    </dl>
    <p class="muted">${why}</p>
    ${found.recognized.length > 0 && html`<${Notice}>${plural(total(found.recognized), "interval")} done by runs of other intervals, as of an earlier schedule.<//>`}
    ${found.partly_done.length > 0 && html`<${Notice} kind="warn">${plural(total(found.partly_done), "interval")} to run, done in part by runs of other intervals.<//>`}
    ${found.pool_wait && html`<${Notice} kind="warn">${found.pool_wait}<//>`}
    <${Outcomes} found=${found} />`;
}

const total = (stretches) => stretches.reduce((sum, each) => sum + each.intervals, 0);

/** The same calendar as a backfill has, with what becomes of each interval. */
function Outcomes({ found }) {
  const data = useMemo(() => new GridData({ ...found.grid, timezone: found.timezone }), [found]);
  const describe = (n) => ({ title: moment(data.starts[n], data.timezone), lines: [data.state(n) === "run" ? "will run" : `excluded: ${data.state(n)}`] });
  return html`
    <${Grid} data=${data} version=${0} label=${`Outcome of ${plural(data.length, "interval")}`} describe=${describe} />
    <${Legend} counts=${data.counts()} names=${{ run: "will run" }} />`;
}

function Refused({ found, zone }) {
  return html`
    <${Trouble} error=${{ message: found.message }} />
    ${(found.overlap ?? []).length > 0 && html`
      <${Table} label="Backfills that it overlaps with" rows=${found.overlap} keyOf=${(row) => row.id} empty="" columns=${[
        { title: "Overlaps with", of: (row) => html`<a href=${`/backfills/${encodeURIComponent(row.id)}`}>${row.id}</a>` },
        { title: "State", of: (row) => html`<${Badge} state=${row.state} />` },
        { title: "Range", of: (row) => html`<span title=${zone}>${range(row.range_start, row.range_end, zone)}</span>` },
      ]} />`}`;
}

function Copies({ found }) {
  const [shown, setShown] = useState("command");
  const text = shown === "command" ? found.command : JSON.stringify(found.request, null, 2);
  return html`
    <div class="copies">
      <div class="row">
        <${Choice} name="copies" label="Show the request as" value=${shown} options=${[["command", "Command line"], ["json", "JSON message"]]} onChange=${setShown} />
        <span class="spring"></span><${CopyButton} text=${text} />
      </div>
      <pre tabindex="0" aria-label=${shown === "command" ? "Command line" : "JSON message"}>${text}</pre>
    </div>`;
}
