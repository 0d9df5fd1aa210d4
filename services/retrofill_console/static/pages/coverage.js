// What was ever done of a pipeline, over all backfills, and by which code.

import { html, useMemo, useState } from "../vendor/preact.js";
import { withQuery } from "../lib/api.js";
import { instant, moment, number, plural, range } from "../lib/format.js";
import { useData } from "../lib/hooks.js";
import { wordOf } from "../lib/states.js";
import { go } from "../router.js";
import { GridData } from "../grid/data.js";
import { Grid } from "../grid/grid.js";
import { Legend } from "../grid/legend.js";
import { Loaded, Moment, Section, Table } from "../parts/parts.js";
import { asBound } from "./selection.js";

const OTHER = "succeeded, other code";

/** The grid's data of what the API sends: what succeeded by other code than the present one is told apart. */
export function byPresentCode(sent) {
  const ofOther = (n) => sent.present_code !== null && sent.code[n] >= 0 && sent.codes[sent.code[n]] !== sent.present_code;
  const states = [...sent.states].map((letter, n) => (sent.letters[letter] === "succeeded" && ofOther(n) ? "O" : letter)).join("");
  return { ...sent, states, letters: { ...sent.letters, O: OTHER } };
}

/** Of each code that the latest runs used, the latest first: {code, present, intervals, from, to, finished}. */
export function codesOf(sent) {
  const end = (n) => sent.ends?.[n] ?? sent.starts[n + 1] ?? sent.end;
  const found = new Map();
  sent.code.forEach((place, n) => {
    if (!sent.finished[n]) return;
    const code = place < 0 ? null : sent.codes[place];
    const last = found.get(code) ?? { code, present: code !== null && code === sent.present_code, intervals: 0, from: sent.starts[n], finished: 0 };
    found.set(code, { ...last, intervals: last.intervals + 1, to: end(n), finished: Math.max(last.finished, sent.finished[n]) });
  });
  return [...found.values()].sort((a, b) => b.finished - a.finished);
}

export function Coverage({ name }) {
  const found = useData(`/api/v1/pipelines/${encodeURIComponent(name)}/coverage`, { concerns: (event) => event.pipeline === name, every: 10_000 });
  return html`<${Loaded} of=${found}>${(sent) => html`<${Drawn} name=${name} sent=${sent} />`}<//>`;
}

function Drawn({ name, sent }) {
  const [selection, setSelection] = useState(null);
  const data = useMemo(() => new GridData(byPresentCode(sent)), [sent]);
  if (data.length === 0) return html`<${Section} title="Coverage"><p class="empty">No interval is over yet, or none was ever run.</p><//>`;
  const describe = (n) => ({ title: moment(data.starts[n], data.timezone), lines: linesOf(sent, data, n) });
  const codes = codesOf(sent);
  return html`
    <${Section} title="Coverage" aside=${html`<span class="muted">${data.timezone}</span><span class="spring"></span><${Legend} counts=${data.counts()} />`}>
      <${Grid} data=${data} version=${0} label=${`What was done of ${plural(data.length, "interval")} of ${name}`} describe=${describe}
        onOpen=${(n) => data.runs[n] && go(`/runs/${data.runs[n]}`)} selection=${selection} onSelect=${setSelection} latest />
      ${sent.cut && html`<p class="hint-line muted">Only the latest ${plural(data.length, "interval")} are drawn.</p>`}
      ${selection === null
        ? html`<p class="hint-line muted">The last run of each interval, of whatever backfill. Select a range to run it; a click opens the run.</p>`
        : html`<${Selected} name=${name} data=${data} selection=${selection} onClear=${() => setSelection(null)} />`}
      ${codes.length > 0 && html`<${Table} label="Code of the last runs" rows=${codes} keyOf=${(row) => row.code ?? ""} empty="" columns=${[
        { title: "Code of the last runs", of: (row) => (row.code === null ? html`<span class="muted">not shipped</span>` : html`<code>${row.code.slice(0, 12)}</code>${row.present && html` <span class="muted">the present code</span>`}`) },
        { title: "Intervals", kind: "number", of: (row) => number(row.intervals) },
        { title: "Within", of: (row) => html`<span class="number" title=${data.timezone}>${range(row.from, row.to, data.timezone)}</span>` },
        { title: "Last finished", of: (row) => html`<${Moment} at=${new Date(row.finished * 1000).toISOString()} />` },
      ]} />`}
    <//>`;
}

function linesOf(sent, data, n) {
  const lines = [wordOf(data.state(n))];
  if (sent.backfill[n] >= 0) lines.push(`backfill ${sent.backfills[sent.backfill[n]]}`);
  if (sent.finished[n]) lines.push(`finished ${instant(sent.finished[n])} UTC`);
  if (sent.code[n] >= 0) lines.push(`code ${sent.codes[sent.code[n]].slice(0, 12)}`);
  return lines;
}

function Selected({ name, data, selection: [from, to], onClear }) {
  const bounds = { from: asBound(data.starts[from], data.timezone), to: asBound(data.starts[to], data.timezone) };
  return html`
    <div class="selection row" role="group" aria-label="Selected intervals">
      <strong>${plural(to - from + 1, "interval")}</strong>
      <span class="number">${range(data.starts[from], data.endOf(to), data.timezone)}</span>
      <span class="spring"></span>
      <a class="button" href=${withQuery("/new", { pipeline: name, ...bounds })}>Run what is missing…</a>
      <a class="button" href=${withQuery("/new", { pipeline: name, ...bounds, reprocess: "completed" })}>Run all of them…</a>
      <button type="button" onClick=${onClear}>Clear</button>
    </div>`;
}
