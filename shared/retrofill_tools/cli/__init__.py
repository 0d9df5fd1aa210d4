"""The command line: reads Postgres, changes things only by publishing events."""
