"""The rules: one file per entity, with its states, table of edges and decisions. No I/O."""
