"""Output in tables: staged in tables of its own, published in one commit for each interval, and undone."""
