ALTER TABLE retrofill.run ADD COLUMN lease_seconds DOUBLE PRECISION;

ALTER TABLE retrofill.backfill ADD COLUMN failed_before INTEGER DEFAULT 0 NOT NULL;

UPDATE retrofill.backfill AS b SET failed_before = (
  SELECT count(*) FROM retrofill.run AS r
  WHERE r.backfill_id = b.id AND r.state = 'failed' AND r.finished_at <= b.resumed_at
)
WHERE b.resumed_at IS NOT NULL AND b.ended_at IS NULL;

DROP INDEX retrofill.backfill_active_of_pipeline_idx;

CREATE INDEX backfill_active_of_pipeline_idx ON retrofill.backfill (pipeline_no, shard, requested_at)
WHERE state IN ('cancelling', 'paused', 'running');
