"""Kafka: clients, topics, envelopes, the fenced consumer of shards, the outbox relay and dead letters."""
