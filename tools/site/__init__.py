"""The documentation as a site: hooks of MkDocs, and what it needs."""
