"""Logs of attempts: what their drivers print, each in files of its own."""
