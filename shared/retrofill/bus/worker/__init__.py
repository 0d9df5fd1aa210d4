"""The worker loop of a service: intake, batches, checks and failures of the shards that it owns."""
