"""Setting an installation up and keeping it: schema, roles, topics and ACLs; purge, export and recovery."""
