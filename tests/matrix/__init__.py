"""Drivers with each Spark and Python: what runs with them, as a test and as a table of the documentation."""
