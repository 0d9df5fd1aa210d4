"""Callbacks that are signed HTTP requests (Standard Webhooks)."""
