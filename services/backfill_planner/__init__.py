"""The backfill-planner: turns a request event into runs and deadlines, atomically, and says when a backfill ended."""
