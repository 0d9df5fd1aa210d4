"""Kafka: clients, envelopes, the fenced consumer of shards, the outbox relay, dead letters."""
