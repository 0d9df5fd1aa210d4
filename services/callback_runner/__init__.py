"""The callback-runner: calls functions, webhooks and topics when deadlines are missed, runs fail or backfills end."""
