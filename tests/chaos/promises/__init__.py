"""The promises, one group per file. Each is a generator that yields violations in a history."""
