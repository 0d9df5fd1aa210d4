// The log of an attempt as the run printed it, live while the attempt is.

import { html, useEffect, useLayoutEffect, useReducer, useRef, useState } from "../vendor/preact.js";
import { withQuery } from "../lib/api.js";
import { number, plural } from "../lib/format.js";
import { Section } from "../parts/parts.js";

// More would make the page slow; the command line prints all.
const MOST_LINES = 5000;

const started = { lines: [], dropped: 0, end: null, problem: null, told: false };

function reduced(state, event) {
  if (event.kind === "start") return started;
  if (event.kind !== "lines") return { ...state, [event.kind]: event.what, told: true };
  const lines = [...state.lines, ...event.lines];
  const extra = Math.max(0, lines.length - MOST_LINES);
  return { ...state, told: true, lines: extra ? lines.slice(extra) : lines, dropped: state.dropped + extra };
}

export function Log({ run }) {
  const begun = run.attempts.filter((attempt) => attempt.began_at);
  const [chosen, setChosen] = useState(null);
  const attempt = chosen ?? begun[begun.length - 1]?.id ?? null;
  const [log, tell] = useReducer(reduced, started);
  const text = useRef(null);
  const atEnd = useRef(true);

  useEffect(() => {
    if (attempt === null) return undefined;
    tell({ kind: "start" });
    const source = new EventSource(withQuery(`/api/v1/runs/${run.id}/log`, { attempt, follow: 1 }));
    const ends = (kind) => (message) => {
      source.close();
      tell({ kind, what: JSON.parse(message.data) });
    };
    source.addEventListener("lines", (message) => tell({ kind: "lines", lines: JSON.parse(message.data) }));
    source.addEventListener("end", ends("end"));
    source.addEventListener("problem", ends("problem"));
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) tell({ kind: "problem", what: { error: "the console cannot read this log" } });
    };
    // It begins anew when the browser connects again.
    source.onopen = () => tell({ kind: "start" });
    return () => source.close();
  }, [run.id, attempt]);

  useLayoutEffect(() => {
    if (atEnd.current && text.current) text.current.scrollTop = text.current.scrollHeight;
  }, [log.lines]);

  const scrolled = ({ target }) => { atEnd.current = target.scrollTop + target.clientHeight >= target.scrollHeight - 8; };
  const aside = html`
    ${begun.length > 1 && html`<label>Attempt <select value=${attempt} onChange=${(event) => setChosen(+event.target.value)}>${begun.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}</select></label>`}
    ${attempt !== null && html`<span class="muted">${standing(log)}</span>`}`;
  return html`
    <${Section} title="Log" aside=${aside}>
      ${attempt === null && html`<p class="empty">nothing is printed before an attempt begins</p>`}
      ${log.problem && html`<p class="empty">${log.problem.error}</p>`}
      ${attempt !== null && (log.lines.length > 0 || !log.problem) && html`<pre class="log" ref=${text} tabindex="0" role="log" aria-label="Log lines" aria-live="off" aria-busy=${!log.told} onScroll=${scrolled}>${log.lines.join("\n")}</pre>`}
    <//>`;
}

function standing({ lines, dropped, end, problem, told }) {
  if (!told) return "reading…";
  if (problem && lines.length === 0) return "";
  const count = `${plural(lines.length + dropped, "line")}${dropped ? `, the last ${number(lines.length)} shown` : ""}`;
  return end ? count : `${count}, ${problem ? "then it was lost" : "live"}`;
}
