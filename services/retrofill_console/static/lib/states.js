// Words and colors of states, the same everywhere. Colors are in base.css, as --state-NAME.

/** Run states in the order in which bars and legends show them. */
export const RUN_STATES = ["succeeded", "failed", "cancelled", "publishing", "staged", "running", "starting", "queued", "skipped"];
export const ENDED = new Set(["succeeded", "failed", "cancelled"]);
export const CANCELLABLE = new Set(["running", "starting", "queued"]);
export const ACTIVE_BACKFILL = new Set(["running", "paused", "in_review", "cancelling"]);

// Which color a state has that has none of its own.
const LIKE = {
  met: "succeeded", missed: "failed", armed: "running", pending: "queued", void: "cancelled", dropped: "cancelled", paused: "cancelled", in_review: "staged",
  cancelling: "cancelled", none: "queued", retrying: "starting", upstream_failed: "cancelled", done: "succeeded",
  lost: "failed", released: "cancelled", ended: "queued", accepted: "succeeded", run: "starting",
  "up to date": "succeeded", behind: "cancelled", absent: "failed", dead: "failed", alive: "succeeded",
  "already exists": "skipped", "not over yet": "skipped", "outside the pipeline's dates": "skipped", purged: "skipped",
  "succeeded, other code": "older", "done in part": "starting", "never run": "queued",
};

/** What has a color of its own. */
export const COLORED = [...RUN_STATES, "older"];
export const colorOf = (state) => (COLORED.includes(state) ? state : LIKE[state] ?? "queued");
/** A state as people read it. */
export const wordOf = (state) => state.replaceAll("_", " ").replace("cancell", "cancel");
export const LIVE_ATTEMPT = new Set(["starting", "running"]);
