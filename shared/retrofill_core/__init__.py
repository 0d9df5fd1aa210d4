"""What the services are made of: decisions, messages, the store and the bus."""
