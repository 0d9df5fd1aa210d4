"""The rules of Retrofill: one entity a file, with its states, its table of edges and its decisions. No I/O."""
