"""The API: what pages read, and what they ask for. Every path is in ``table.ENDPOINTS``."""
