"""The web console: shows an installation live, and publishes what its viewers ask for."""
