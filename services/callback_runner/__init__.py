"""The callback-runner: calls what a missed deadline names, once successfully, each call in a process of its own."""
