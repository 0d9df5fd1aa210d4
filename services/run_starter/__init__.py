"""The run-starter: starts runs on Spark within their limits and records the drivers' reports."""
