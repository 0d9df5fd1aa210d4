"""The operating system: process groups, signals, durable files, crash points."""
