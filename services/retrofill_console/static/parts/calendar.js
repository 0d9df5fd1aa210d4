// Months of days, of which two are chosen as a range. The text fields beside it take the same without a mouse.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const DAY = 86_400_000;
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const SHOWN = 2;
const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 };

const parsed = (text) => (/^\d{4}-\d\d-\d\d/.test(text ?? "") ? Date.parse(`${text.slice(0, 10)}T00:00:00Z`) : NaN);
const written = (at) => new Date(at).toISOString().slice(0, 10);
const monthOf = (at) => new Date(at).getUTCFullYear() * 12 + new Date(at).getUTCMonth();
const firstDay = (month) => Date.UTC(Math.floor(month / 12), month % 12, 1);

/** @param first, last the pipeline's own dates; onChange({from, to}) with days as text */
export function Calendar({ from, to, first, last, onChange }) {
  const today = Math.floor(Date.now() / DAY) * DAY;
  const [start, end] = [parsed(from), parsed(to)];
  const latest = Math.min(today, Number.isNaN(parsed(last)) ? today : parsed(last));
  const [month, setMonth] = useState(() => monthOf(Number.isNaN(start) ? latest : start) - (Number.isNaN(start) ? SHOWN - 1 : 0));
  const [picking, setPicking] = useState(null); // the first click of two
  const [at, setAt] = useState(Number.isNaN(start) ? latest : start);
  const box = useRef(null);
  const move = useRef(false);

  useEffect(() => {
    if (!Number.isNaN(start)) setMonth((now) => (monthOf(start) < now || monthOf(start) >= now + SHOWN ? monthOf(start) : now));
  }, [from]);
  useEffect(() => {
    if (move.current) box.current.querySelector(`[data-day="${written(at)}"]`)?.focus();
    move.current = false;
  }, [at, month]);

  const pick = (day) => {
    setAt(day);
    if (picking === null) {
      setPicking(day);
      onChange({ from: written(day), to: written(day) });
    } else {
      onChange({ from: written(Math.min(picking, day)), to: written(Math.max(picking, day)) });
      setPicking(null);
    }
  };
  const keydown = (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const next = at + STEPS[event.key] * DAY;
    move.current = true;
    setAt(next);
    if (monthOf(next) < month) setMonth(monthOf(next));
    if (monthOf(next) >= month + SHOWN) setMonth(monthOf(next) - SHOWN + 1);
  };
  const reachable = monthOf(at) >= month && monthOf(at) < month + SHOWN ? at : firstDay(month);
  const outside = (day) => day > today || day < parsed(first) || day > parsed(last);
  return html`
    <div class="calendar" ref=${box} onKeyDown=${keydown} role="group" aria-label="Calendar">
      <button type="button" class="icon" aria-label="Earlier months" onClick=${() => setMonth(month - SHOWN)}>‹</button>
      ${Array.from({ length: SHOWN }, (_, n) => html`<${Month} key=${month + n} month=${month + n} start=${start} end=${end} reachable=${reachable} outside=${outside} pick=${pick} />`)}
      <button type="button" class="icon" aria-label="Later months" onClick=${() => setMonth(month + SHOWN)}>›</button>
    </div>`;
}

function Month({ month, start, end, reachable, outside, pick }) {
  const first = firstDay(month);
  const blank = (new Date(first).getUTCDay() + 6) % 7;
  const days = Array.from({ length: (firstDay(month + 1) - first) / DAY }, (_, n) => first + n * DAY);
  const title = `${MONTHS[month % 12]} ${Math.floor(month / 12)}`;
  const kind = (day) => `${day >= start && day <= end ? "in" : ""} ${day === start ? "first" : ""} ${day === end ? "last" : ""} ${outside(day) ? "outside" : ""}`;
  return html`
    <div class="month" role="group" aria-label=${title}>
      <p aria-hidden="true">${title}</p>
      <div class="days">
        ${["M", "T", "W", "T", "F", "S", "S"].map((name, n) => html`<span key=${`w${n}`} aria-hidden="true">${name}</span>`)}
        ${Array.from({ length: blank }, (_, n) => html`<i key=${`b${n}`}></i>`)}
        ${days.map((day, n) => html`<button key=${day} type="button" class=${kind(day)} data-day=${written(day)} aria-label=${written(day)} aria-pressed=${day >= start && day <= end} tabindex=${day === reachable ? 0 : -1} onClick=${() => pick(day)}>${n + 1}</button>`)}
      </div>
    </div>`;
}
