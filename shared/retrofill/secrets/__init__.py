"""Secrets in settings, logs and errors: how they are recognized and masked."""
