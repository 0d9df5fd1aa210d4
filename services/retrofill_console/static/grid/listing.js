// The text alternative of the grid: the same intervals as a table, a page at a time.

import { html, useState } from "../vendor/preact.js";
import { number } from "../lib/format.js";
import { wordOf } from "../lib/states.js";
import { Badge, Table } from "../parts/parts.js";

const PAGE = 100;

/** @param rowOf (index) => {title, lines, href}; columns: [heading, (index) => cell] beyond interval and state */
export function Listing({ data, version, titleOf, hrefOf, columns }) {
  const [state, setState] = useState("");
  const [page, setPage] = useState(0);
  const wanted = data.names.indexOf(state);
  const places = [];
  for (let n = 0; n < data.length; n += 1) if (state === "" || data.codes[n] === wanted) places.push(n);
  const pages = Math.max(1, Math.ceil(places.length / PAGE));
  const at = Math.min(page, pages - 1);
  const shown = places.slice(at * PAGE, (at + 1) * PAGE);
  return html`
    <div class="listing" data-version=${version}>
      <div class="row">
        <label>State <select value=${state} onChange=${(event) => { setState(event.target.value); setPage(0); }}>
          <option value="">all</option>
          ${Object.keys(data.counts()).map((name) => html`<option key=${name} value=${name}>${wordOf(name)}</option>`)}
        </select></label>
        <span class="muted">${number(places.length)} intervals</span>
        <span class="spring"></span>
        <button type="button" disabled=${at === 0} onClick=${() => setPage(at - 1)}>Earlier</button>
        <span class="muted number">${at + 1} / ${number(pages)}</span>
        <button type="button" disabled=${at + 1 >= pages} onClick=${() => setPage(at + 1)}>Later</button>
      </div>
      <${Table} label="Intervals" rows=${shown} keyOf=${(n) => n} empty="no such intervals" columns=${[
        { title: "Interval", of: (n) => (hrefOf(n) ? html`<a href=${hrefOf(n)}>${titleOf(n)}</a>` : titleOf(n)) },
        { title: "State", of: (n) => html`<${Badge} state=${data.state(n)} />` },
        ...columns,
      ]} />
    </div>`;
}
