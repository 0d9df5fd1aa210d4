"""What a host and a driver tell each other: the launch, facts and errors."""
