// Asks for the viewer's token.

import { html, useState } from "../vendor/preact.js";
import { post } from "../lib/api.js";
import { useTitle } from "../lib/hooks.js";
import { Trouble } from "../parts/parts.js";

export function Login({ onEnter }) {
  const [problem, setProblem] = useState(null);
  useTitle("Log in");
  const submit = async (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    try {
      await post("/api/v1/login", { token: given.get("token") });
      onEnter();
    } catch (error) {
      setProblem(error);
    }
  };
  return html`
    <main class="alone">
      <form class="login" onSubmit=${submit}>
        <h1>Retrofill</h1>
        <${Trouble} error=${problem} />
        <label>Token<input name="token" type="password" autocomplete="current-password" required /></label>
        <p class="muted">Who operates the console makes your token: <code>retrofill tokens create USER --role ROLE</code>.</p>
        <button class="primary">Log in</button>
      </form>
    </main>`;
}
