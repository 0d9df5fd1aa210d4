ALTER TABLE retrofill.run ADD COLUMN superseded_by BIGINT;

ALTER TABLE retrofill.run ADD CONSTRAINT run_only_failed_superseded CHECK (superseded_by IS NULL OR state = 'failed');

ALTER TABLE retrofill.run ADD CONSTRAINT run_backfill_id_position_superseded_by_key UNIQUE NULLS NOT DISTINCT (backfill_id, position, superseded_by);

ALTER TABLE retrofill.run DROP CONSTRAINT run_backfill_id_position_key;

DROP INDEX retrofill.run_failed_idx;

-- Which runs failed and count.
CREATE INDEX run_failed_idx ON retrofill.run (backfill_id, position) WHERE state = 'failed' AND superseded_by IS NULL;

ALTER TABLE retrofill.backfill ADD COLUMN batch_size INTEGER;

ALTER TABLE retrofill.backfill ADD COLUMN covers_parts TSTZMULTIRANGE;

ALTER TABLE retrofill.backfill DROP CONSTRAINT backfill_no_overlap;

ALTER TABLE retrofill.backfill ADD CONSTRAINT backfill_no_overlap EXCLUDE USING gist (int8range(pipeline_no, pipeline_no, '[]') WITH &&, coalesce(covers_parts, tstzmultirange(covers)) WITH &&) WHERE (state IN ('cancelling', 'paused', 'running'));
