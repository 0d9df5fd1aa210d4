"""The process that writes the logs of attempts, and their files."""
