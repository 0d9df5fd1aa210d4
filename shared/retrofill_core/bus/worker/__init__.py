"""A service's worker loop: intake, batches, checks and failures of the shards that it owns."""
