// The frame of all pages: navigation, the live connection's state, and which page is at which address.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact.js";
import { get, post, whenLoggedOut } from "./lib/api.js";
import { useLiveState } from "./lib/hooks.js";
import { start } from "./lib/live.js";
import { showExact, useTimes } from "./lib/times.js";
import { here, match, onMove, takeOverLinks } from "./router.js";
import { Backfill } from "./pages/backfill.js";
import { Backfills } from "./pages/backfills.js";
import { Callbacks } from "./pages/callbacks.js";
import { DeadLetters } from "./pages/dead-letters.js";
import { Deadlines } from "./pages/deadlines.js";
import { Health } from "./pages/health.js";
import { Login } from "./pages/login.js";
import { New } from "./pages/new.js";
import { Pipeline } from "./pages/pipeline.js";
import { Pipelines } from "./pages/pipelines.js";
import { Run } from "./pages/run.js";

const PAGES = [
  ["", Backfills, "/"], ["/backfills", Backfills, "/"], ["/backfills/:id", Backfill, "/"], ["/runs/:id", Run, "/"],
  ["/new", New, "/new"], ["/pipelines", Pipelines, "/pipelines"], ["/pipelines/:name", Pipeline, "/pipelines"],
  ["/deadlines", Deadlines, "/deadlines"], ["/callbacks", Callbacks, "/callbacks"], ["/dead-letters", DeadLetters, "/dead-letters"],
  ["/health", Health, "/health"],
];
const LINKS = [
  ["/", "Backfills"], ["/pipelines", "Pipelines"], ["/deadlines", "Deadlines"], ["/callbacks", "Callbacks"],
  ["/dead-letters", "Dead letters"], ["/health", "Health"],
];
const LIVE = { connecting: "connecting…", live: "live", lost: "not live: reconnecting…", kafka: "not live: Kafka does not answer", asleep: "paused" };

function pageAt({ path }) {
  for (const [pattern, page, link] of PAGES) {
    const values = match(pattern, path);
    if (values) return { page, values, link };
  }
  return { page: Missing, values: { path }, link: null };
}

const Missing = ({ path }) => html`<h1>Nothing is here</h1><p>There is no page ${path}. <a href="/">Backfills</a></p>`;

/** A mistake in one page leaves the others usable. */
function Safe({ page: Page, values, query }) {
  const [problem] = useErrorBoundary((error) => console.error(error));
  if (problem) return html`<h1>This page failed</h1><p class="notice bad" role="alert">${String(problem)}</p>`;
  return html`<${Page} ...${values} query=${query} />`;
}

function Times() {
  const shown = useTimes();
  return html`<button type="button" class="link" aria-pressed=${shown} onClick=${() => showExact(!shown)}>Exact times</button>`;
}

function Shell({ session, onLogout }) {
  const [at, setAt] = useState(here);
  const main = useRef(null);
  useEffect(() => onMove((next, fresh) => {
    setAt(next);
    if (!fresh) return;
    scrollTo(0, 0);
    main.current.focus({ preventScroll: true });
  }), []);
  // After the page's own effects, which say whose events it wants.
  useEffect(start, []);
  const { page, values, link } = pageAt(at);
  const live = useLiveState();
  return html`
    <a class="skip" href="#content">Skip to content</a>
    <header class="top">
      <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="18" height="18" />Retrofill</a>
      <nav aria-label="Pages">${LINKS.map(([href, text]) => html`<a key=${href} href=${href} aria-current=${href === link ? "page" : null}>${text}</a>`)}</nav>
      <span class="spring"></span>
      <span class=${`live ${live}`} role="status">${LIVE[live]}</span>
      ${session.user && html`<span class="muted">${session.user}</span>`}
      ${session.login === "token" && html`<button type="button" class="small" onClick=${onLogout}>Log out</button>`}
      <a class="button primary" href="/new" aria-current=${link === "/new" ? "page" : null}>New backfill</a>
    </header>
    <main id="content" ref=${main} tabindex="-1"><${Safe} key=${at.path} page=${page} values=${values} query=${at.query} /></main>
    <footer class="muted">Retrofill ${session.version} · <a href="/api/v1/openapi.json">API</a> · <${Times} /></footer>`;
}

function App() {
  const [session, setSession] = useState(null);
  const [problem, setProblem] = useState(null);
  const enter = async () => {
    try {
      setSession(await get("/api/v1/me"));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  useEffect(() => {
    enter();
    // Without an answer, the page goes on saying by itself what is wrong.
    whenLoggedOut(() => get("/api/v1/me").then(setSession, console.warn));
  }, []);
  const leave = async () => {
    await post("/api/v1/logout");
    location.reload();
  };
  if (problem) return html`<p class="alone notice bad" role="alert">${problem.message}</p>`;
  if (session?.login === "token" && !session.logged_in) return html`<${Login} onEnter=${enter} />`;
  if (session && !session.logged_in) return html`<p class="alone notice bad" role="alert">Open the console through its proxy: nobody is logged in here.</p>`;
  return session && html`<${Shell} session=${session} onLogout=${leave} />`;
}

takeOverLinks();
render(html`<${App} />`, document.getElementById("app"));
