"""The deadline-watcher: decides at its moment whether a deadline was met, and says so once when it was missed."""
