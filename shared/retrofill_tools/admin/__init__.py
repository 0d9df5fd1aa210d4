"""Installation and maintenance: schema, roles, topics, ACLs, purge, export and recovery."""
