"""The embedded stack: a real Kafka, Postgres and Spark Connect server and the four services, supervised, in one folder."""
