// From the form's texts to the body of a request: pure.

export const EMPTY = {
  pipeline: "", from: "", to: "", id: "", max_active_runs: "", batch_size: "", reprocess_behavior: "none", run_backwards: false,
  on_run_failure: "continue", conf: "", review: false, latest_code: false, finish_by: "", budget_failed_runs: "", budget_core_hours: "", budget_until: "",
};

/** {body} without what is default, or {error: one line}; `error` is "" while the form is not filled in. */
export function requestOf(form) {
  const [from, to] = [form.from.trim(), form.to.trim()];
  if (!form.pipeline || !from || !to) return { body: null, error: "Choose the first and the last logical date." };
  const body = { pipeline: form.pipeline, from, to };
  for (const name of ["max_active_runs", "batch_size"]) if (form[name] !== "") body[name] = Number(form[name]);
  for (const name of ["reprocess_behavior", "on_run_failure", "run_backwards", "latest_code"]) if (form[name] !== EMPTY[name]) body[name] = form[name];
  if (form.review) body.publish = "review";
  if (form.id.trim()) body.id = form.id.trim();
  if (form.finish_by) body.finish_by = new Date(form.finish_by).toISOString();
  const budget = budgetOf(form);
  if (Object.keys(budget).length) body.budget = budget;
  if (form.conf.trim()) {
    try {
      body.conf = JSON.parse(form.conf);
    } catch (e) {
      return { body: null, error: `Conf is no JSON: ${e.message}` };
    }
    if (body.conf === null || typeof body.conf !== "object" || Array.isArray(body.conf)) return { body: null, error: 'Conf must be a JSON object like {"key": 1}.' };
  }
  return { body, error: null };
}

function budgetOf(form) {
  const budget = {};
  if (form.budget_failed_runs !== "") budget.failed_runs = Number(form.budget_failed_runs);
  if (form.budget_core_hours !== "") budget.core_hours = Number(form.budget_core_hours);
  if (form.budget_until) budget.until = new Date(form.budget_until).toISOString();
  return budget;
}
