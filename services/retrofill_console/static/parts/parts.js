// Small parts that all pages are made of.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { instant, number, relative } from "../lib/format.js";
import { ENDED, RUN_STATES, wordOf } from "../lib/states.js";
import { useTimes } from "../lib/times.js";
import { Swatch } from "../grid/legend.js";

export const Badge = ({ state, text = wordOf(state) }) => html`<span class="badge"><${Swatch} state=${state} />${text}</span>`;

/** How long ago it was, and when with the pointer on it; or the other way round (lib/times.js). */
export function Moment({ at }) {
  const exact = useTimes();
  if (at == null) return html`<span class="muted">–</span>`;
  const [ago, when] = [relative(at), `${instant(at)} UTC`];
  return html`<time class="number" datetime=${at} title=${exact ? ago : when}>${exact ? when : ago}</time>`;
}

/** Names and values beside each other, without those that are null. */
export function Facts({ of }) {
  const there = of.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`<dl class="facts">${there.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/**
 * A table; columns: {title, of: (row) => cell, kind?: "number" | "wide" | "long" | "range"}.
 *
 * `empty` is said instead of a table without rows. The roles are said because narrow screens show rows as cards (parts.css),
 * which takes the elements' own away.
 */
export function Table({ label, columns, rows, keyOf, empty, rowClass }) {
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`
    <div class="table-box" tabindex="0" role="group" aria-label=${label}>
      <table role="table">
        <caption class="unseen">${label}</caption>
        <thead role="rowgroup"><tr role="row">${columns.map(({ title, kind }) => html`<th key=${title} scope="col" role="columnheader" class=${kind}>${title}</th>`)}</tr></thead>
        <tbody role="rowgroup">
          ${rows.map((row) => html`<tr key=${keyOf(row)} role="row" class=${rowClass?.(row)}>${columns.map(({ title, of, kind }) => html`<td key=${title} role="cell" class=${kind} data-title=${title}>${of(row)}</td>`)}</tr>`)}
        </tbody>
      </table>
    </div>`;
}

/** Runs by state as a bar, for ears as a sentence. */
export function Progress({ byState, runs, label, large = false }) {
  const ended = Object.entries(byState).reduce((sum, [state, count]) => sum + (ENDED.has(state) ? count : 0), 0);
  const said = Object.entries(byState).map(([state, count]) => `${number(count)} ${wordOf(state)}`).join(", ");
  const there = RUN_STATES.filter((state) => byState[state]);
  return html`
    <div class=${large ? "bar large" : "bar"} role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax=${runs} aria-valuenow=${Math.min(ended, runs)} aria-valuetext=${said || "none"} title=${said}>
      ${there.map((state) => html`<span key=${state} class=${`fill ${state}`} style=${{ flexGrow: byState[state] }}></span>`)}
    </div>`;
}

/** The one line of a problem. Said at once by screen readers. */
export const Trouble = ({ error }) => (error ? html`<p class="notice bad" role="alert">${error.message ?? String(error)}</p>` : null);

export const Notice = ({ kind = "", children }) => html`<p class=${`notice ${kind}`} role="status">${children}</p>`;

/** The page of a `useData`: its problem, that it is read, or what `children(data)` shows of it. */
export function Loaded({ of, children }) {
  return html`
    <${Trouble} error=${of.error} />
    ${of.data === null ? (of.error ? null : html`<p class="empty" aria-busy="true">Reading…</p>`) : children(of.data)}`;
}

export function Section({ title, aside = null, children, id }) {
  return html`<section aria-label=${title} id=${id}><div class="section-head"><h2>${title}</h2>${aside}</div>${children}</section>`;
}

/** The last line of an error's text, which says most; the rest on demand. */
export function Brief({ text }) {
  const lines = (text ?? "").trimEnd().split("\n");
  const last = lines[lines.length - 1];
  if (lines.length === 1) return last;
  return html`<details><summary>${last}</summary><pre tabindex="0" aria-label="Error">${text.trimEnd()}</pre></details>`;
}

/** The first line of a message, and the last cause where Java says one: its other lines are where it happened. */
export function gist(text) {
  const [first, ...others] = (text ?? "").trimEnd().split("\n");
  const cause = others.findLast((line) => line.startsWith("Caused by: "));
  return cause ? `${first.trimEnd()} … ${cause}` : first;
}

/** An error with its traceback, which has the whole message. */
export function Fault({ error, what = null }) {
  return html`
    <div class="fault">
      <p>${what && html`<span class="muted">${what} </span>`}<strong>${error.type}</strong>${error.message ? `: ${gist(error.message)}` : ""}</p>
      ${error.traceback ? html`<pre tabindex="0" aria-label="Traceback">${error.traceback.trimEnd()}</pre>` : error.message?.includes("\n") && html`<pre tabindex="0" aria-label="Message">${error.message.trimEnd()}</pre>`}
    </div>`;
}

export function CopyButton({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copied(text);
    setDone(true);
    setTimeout(setDone, 1500, false);
  };
  return html`<button type="button" class="small" onClick=${copy}>${done ? "Copied" : label}</button>`;
}

/** Pages on plain HTTP from elsewhere have no clipboard of their own. */
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that does something, once at a time; what went wrong is told to `onDone(error, answer)`. */
export function Act({ act, onDone, children, kind = "", disabled = false }) {
  const [busy, setBusy] = useState(false);
  const there = useRef(true);
  useEffect(() => () => { there.current = false; }, []);
  const run = async () => {
    setBusy(true);
    try {
      onDone?.(null, await act());
    } catch (error) {
      onDone?.(error, null);
    } finally {
      if (there.current) setBusy(false);
    }
  };
  return html`<button type="button" class=${kind} disabled=${disabled || busy} aria-busy=${busy} onClick=${run}>${children}</button>`;
}

/** A question before something that cannot be undone. */
export function Confirm({ question, yes, onYes, onNo }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`
    <dialog ref=${dialog} aria-label=${question} onClose=${onNo} onCancel=${onNo}>
      <p>${question}</p>
      <div class="row end">
        <button type="button" autofocus onClick=${onNo}>Keep it</button>
        <button type="button" class="danger" onClick=${onYes}>${yes}</button>
      </div>
    </dialog>`;
}

/** Choices of which one is on, as links would be: arrow keys are the browser's. */
export function Choice({ name, label, value, options, onChange }) {
  return html`
    <fieldset class="choice">
      <legend class="unseen">${label}</legend>
      ${options.map(([each, text]) => html`<label key=${each} class=${each === value ? "on" : ""}><input type="radio" name=${name} value=${each} checked=${each === value} onChange=${() => onChange(each)} />${text}</label>`)}
    </fieldset>`;
}

