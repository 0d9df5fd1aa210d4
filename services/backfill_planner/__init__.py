"""The backfill-planner: turns requests into runs and deadlines atomically, and ends backfills."""
