// Asks for the console's token, where one is set.

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
      await post("/api/v1/login", { token: given.get("token"), name: given.get("name") });
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
        <label>Your name<input name="name" autocomplete="username" required maxlength="200" /></label>
        <label>Token<input name="token" type="password" autocomplete="current-password" required /></label>
        <p class="muted">The token is what RETROFILL_CONSOLE_TOKEN holds where the console runs. Your name is recorded with what you request.</p>
        <button class="primary">Log in</button>
      </form>
    </main>`;
}
