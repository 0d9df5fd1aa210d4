"""Live events: Kafka is read once, and its events go to every viewer."""
