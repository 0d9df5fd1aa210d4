"""Spark drivers: processes that run the tasks of one run and report the results."""
