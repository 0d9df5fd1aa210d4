"""Messages between a host and a driver: the launch, facts and errors."""
