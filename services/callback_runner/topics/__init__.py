"""Callbacks that are messages on a Kafka topic."""
