"""Metrics, health checks, gauges, and the diagnosis of failed Kafka connections."""
