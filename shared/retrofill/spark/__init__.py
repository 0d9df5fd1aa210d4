"""Spark's own programs: Java, spark-submit, its settings, clusters, and lost sessions."""
