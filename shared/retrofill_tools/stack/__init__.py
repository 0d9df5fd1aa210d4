"""The embedded stack: Kafka, Postgres, Spark Connect and the services, in one directory."""
