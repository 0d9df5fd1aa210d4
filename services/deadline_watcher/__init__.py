"""The deadline-watcher: decides whether a due deadline was met, and reports a miss once."""
