"""What runs beside Spark: a driver runs the tasks of one run and reports how they fare."""
