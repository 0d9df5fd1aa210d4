"""The run-starter: starts runs on Spark, never beyond their limits, and records what the drivers report."""
