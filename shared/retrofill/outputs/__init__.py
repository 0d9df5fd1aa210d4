"""Outputs of runs, directories and tables: staged, published, kept, compared and restored."""
