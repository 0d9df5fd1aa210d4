// A backfill's grid with its selection, and the same intervals as a table.

import { html, useState } from "../vendor/preact.js";
import { moment, plural } from "../lib/format.js";
import { wordOf } from "../lib/states.js";
import { Grid } from "../grid/grid.js";
import { Legend } from "../grid/legend.js";
import { Listing } from "../grid/listing.js";
import { go } from "../router.js";
import { Choice, Section, Trouble } from "../parts/parts.js";
import { Selection } from "./selection.js";

/** `said`: the page already says why nothing can be read. */
export function Intervals({ facts, grid, onDone, said = false }) {
  const [view, setView] = useState("grid");
  const [selection, setSelection] = useState(null);
  const { data, version, error: problem } = grid;
  const error = said ? null : problem;
  if (data === null) return html`<${Section} title="Intervals"><${Trouble} error=${error} />${error === null && html`<p class="empty" aria-busy="true">Reading…</p>`}<//>`;
  const texts = textsOf(data);
  const switcher = html`<${Choice} name="view" label="Show intervals as" value=${view} options=${[["grid", "Grid"], ["table", "Table"]]} onChange=${setView} />`;
  return html`
    <${Section} title="Intervals" aside=${html`<span class="muted">${data.timezone}</span><span class="spring"></span><${Legend} counts=${data.counts()} />${switcher}`}>
      <${Trouble} error=${error} />
      ${view === "grid"
        ? html`<${Grid} data=${data} version=${version} label=${`${plural(data.length, "interval")} of ${facts.pipeline}`}
            describe=${texts.describe} onOpen=${(n) => data.runs[n] && go(`/runs/${data.runs[n]}`)}
            selection=${selection} onSelect=${setSelection} />
          <${Selection} facts=${facts} data=${data} version=${version} selection=${selection} onClear=${() => setSelection(null)} onDone=${onDone} />`
        : html`<${Listing} data=${data} version=${version} titleOf=${texts.title} hrefOf=${(n) => data.runs[n] && `/runs/${data.runs[n]}`} columns=${[
            { title: "Begun", kind: "number", of: (n) => data.attempts[n] || "–" },
            { title: "Attempt", kind: "number", of: (n) => data.batches[n] || "–" },
            { title: "Run", kind: "number", of: (n) => data.runs[n] || "–" },
          ]} />`}
    <//>`;
}

/** How an interval is called, and what is said of it. */
export function textsOf(data) {
  const title = (n) => moment(data.starts[n], data.timezone);
  const describe = (n) => {
    const size = data.batchSize(n);
    const begun = data.attempts[n] ?? 0;
    const lines = [wordOf(data.state(n))];
    if (begun > 1) lines.push(`begun ${begun} times`);
    if (data.batches[n]) lines.push(size > 1 ? `attempt ${data.batches[n]}, ${size} runs in a row` : `attempt ${data.batches[n]}`);
    if (data.limits[n]) lines.push(`split: next with at most ${plural(data.limits[n], "run")}`);
    if (data.runs[n]) lines.push(`run ${data.runs[n]}`);
    return { title: title(n), lines };
  };
  return { title, describe };
}
