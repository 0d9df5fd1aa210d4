"""State machines, and those of attempts and task runs, which drivers know too."""
