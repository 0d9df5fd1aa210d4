"""The parts that services are made of: decisions, messages, the store and the bus."""
