// Messages that no service could handle, and publishing them again.

import { html, useState } from "../vendor/preact.js";
import { post } from "../lib/api.js";
import { number } from "../lib/format.js";
import { useData, useFocus, useTitle } from "../lib/hooks.js";
import { Act, CopyButton, Loaded, Moment, Notice, Trouble } from "../parts/parts.js";
import { firstError } from "./callbacks.js";

export function DeadLetters() {
  const [outcome, setOutcome] = useState({});
  useTitle("Dead letters");
  useFocus(null);
  const found = useData("/api/v1/dead-letters?limit=100", { concerns: ({ topic }) => topic === "dead-letters", every: 30_000 });
  const done = (place) => (error, answer) => {
    const problem = error ?? firstError(answer);
    setOutcome({ error: problem, said: problem ? null : `${place} was published again. The letter stays in its topic until it is dropped.` });
    found.refresh();
  };
  return html`
    <div class="page-head"><h1>Dead letters</h1></div>
    <p class="muted">Messages that a service could not read or handle. Newest first; <code>retrofill dead-letters drop</code> deletes them.</p>
    <${Trouble} error=${outcome.error} />
    ${outcome.said && html`<${Notice}>${outcome.said}<//>`}
    <${Loaded} of=${found}>${(rows) =>
      rows.length === 0
        ? html`<p class="empty">No dead letters: every message was handled.</p>`
        : html`<ul class="letters">${rows.map((row) => html`<${Letter} key=${row.place} row=${row} onDone=${done(row.place)} />`)}</ul>`}
    <//>`;
}

function Letter({ row, onDone }) {
  const value = row.value ?? row.value_base64 ?? "";
  return html`
    <li>
      <div class="row">
        <strong>${row.origin_topic}</strong>
        <span class="id">${row.key ?? row.key_base64 ?? "no key"}</span>
        <span class="muted number">${row.place} · <${Moment} at=${row.at} /></span>
        <span class="spring"></span>
        ${row.replay ? html`<span class="muted">${row.replay}</span>` : html`<${Act} kind="small" act=${() => post("/api/v1/dead-letters/replay", { places: [row.place] })} onDone=${onDone}>Publish again<//>`}
      </div>
      <p>${row.reason}</p>
      <details>
        <summary>Message</summary>
        <pre tabindex="0" aria-label="Message">${pretty(value)}</pre>
        ${row.value_bytes
          ? html`<p class="muted">The first ${number(value.length)} characters of ${number(row.value_bytes)} bytes. <code>retrofill dead-letters list --json</code> prints all of it.</p>`
          : html`<${CopyButton} text=${value} label="Copy the message" />`}
      </details>
    </li>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not JSON, which may be why it is here
  }
}
