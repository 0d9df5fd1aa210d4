// When the attempts and tasks of a run were under way, as bars on one axis. The tables below it say the same in words.

import { html } from "../vendor/preact.js";
import { between, duration } from "../lib/format.js";
import { colorOf, wordOf } from "../lib/states.js";
import { useTimes } from "../lib/times.js";

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
const TICKS = 6;

const at = (text) => (text == null ? null : Date.parse(text) / 1000);

/**
 * The bars of a run, in the order in which they began.
 *
 * @param run as the API has it; `now` in seconds, until which goes what has not ended
 * @returns [{key, name, note, from, to, state, began}]; `began`: until then it only waited for its driver
 */
export function barsOf(run, now) {
  const times = new Set(run.tasks.map((task) => task.attempt)).size;
  const attempts = run.attempts.map((attempt) => ({
    key: `attempt ${attempt.id}`,
    name: attempt.mode === "publish" ? `attempt ${attempt.id}, publishes` : `attempt ${attempt.id}`,
    note: attempt.host,
    from: at(attempt.claimed_at),
    began: at(attempt.began_at ?? attempt.ended_at) ?? now,
    to: at(attempt.ended_at) ?? now,
    state: attempt.outcome ?? attempt.state,
    attempt: true,
  }));
  const tasks = run.tasks.filter((task) => task.started_at).map((task) => ({
    key: `task ${task.task} ${task.attempt}`,
    name: times > 1 ? `${task.task}, time ${task.attempt}` : task.task,
    note: task.try_number > 1 ? `try ${task.try_number}` : "",
    from: at(task.started_at),
    began: at(task.started_at),
    to: at(task.finished_at) ?? now,
    state: task.state,
    attempt: false,
  }));
  return [...attempts, ...tasks].sort((a, b) => a.from - b.from || b.attempt - a.attempt || a.to - b.to);
}

/** Round moments between 0 and `length` seconds, at most a few. */
export function ticksOf(length) {
  const step = STEPS.find((each) => length / each <= TICKS) ?? Math.ceil(length / TICKS / 86_400) * 86_400;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, n) => n * step);
}

export function Timeline({ run }) {
  useTimes(); // what is under way grows
  const bars = barsOf(run, Date.now() / 1000);
  if (bars.length === 0) return null;
  const start = Math.min(...bars.map(({ from }) => from));
  const length = Math.max(...bars.map(({ to }) => to), start + 0.1) - start;
  const percent = (seconds) => `${(100 * seconds) / length}%`;
  const waited = between(run.queued_at, run.attempts[0]?.claimed_at);
  return html`
    <div class="timeline" role="img" aria-label=${`Timeline: ${bars.map(said).join("; ")}`}>
      <div class="timeline-axis" aria-hidden="true">${ticksOf(length).map((tick) => html`<span key=${tick} style=${{ left: percent(tick) }}>${tick === 0 ? "0" : duration(tick)}</span>`)}</div>
      ${bars.map((bar) => html`
        <div key=${bar.key} class=${bar.attempt ? "timeline-row of-attempt" : "timeline-row"} title=${said(bar)}>
          <span class="timeline-name">${bar.name} <span class="muted">${bar.note}</span></span>
          <span class="timeline-track">
            ${bar.began > bar.from && html`<i class="fill starting" style=${{ left: percent(bar.from - start), width: percent(bar.began - bar.from) }}></i>`}
            <i class=${`fill ${colorOf(bar.state)}`} style=${{ left: percent(bar.began - start), width: percent(bar.to - bar.began) }}></i>
          </span>
          <span class="timeline-took">${tookOf(bar)}</span>
        </div>`)}
      ${waited !== "–" && html`<p class="muted">It was queued for ${waited} before its first attempt.</p>`}
    </div>`;
}

const said = (bar) => `${bar.name}${bar.note ? `, ${bar.note}` : ""}: ${wordOf(bar.state)}, ${tookOf(bar)}`;

/** None if the beginning was reported with the end. */
const tookOf = ({ from, to }) => (from === to ? "–" : duration(to - from));
