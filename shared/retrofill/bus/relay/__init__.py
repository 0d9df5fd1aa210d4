"""The outbox relay: publishes committed rows in Kafka transactions, each exactly once."""
