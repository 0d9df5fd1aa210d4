"""The outbox relay: publishes committed outbox rows in Kafka transactions, each exactly once."""
