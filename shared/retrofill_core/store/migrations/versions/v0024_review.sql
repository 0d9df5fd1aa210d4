ALTER TABLE retrofill.backfill ADD COLUMN review BOOLEAN NOT NULL DEFAULT false;

ALTER TABLE retrofill.backfill ADD COLUMN staged_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE retrofill.backfill ADD COLUMN approved_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE retrofill.run ADD COLUMN staged_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE retrofill.backfill DROP CONSTRAINT backfill_state_known;

ALTER TABLE retrofill.backfill ADD CONSTRAINT backfill_state_known CHECK (state IN ('cancelled', 'cancelling', 'failed', 'in_review', 'paused', 'running', 'succeeded'));

ALTER TABLE retrofill.backfill DROP CONSTRAINT backfill_no_overlap;

ALTER TABLE retrofill.backfill ADD CONSTRAINT backfill_no_overlap EXCLUDE USING gist (int8range(pipeline_no, pipeline_no, '[]') WITH &&, coalesce(covers_parts, tstzmultirange(covers)) WITH &&) WHERE (state IN ('cancelling', 'in_review', 'paused', 'running'));

DROP INDEX retrofill.backfill_active_idx;

CREATE INDEX backfill_active_idx ON retrofill.backfill (shard) WHERE state IN ('cancelling', 'in_review', 'paused', 'running');

DROP INDEX retrofill.backfill_active_of_pipeline_idx;

CREATE INDEX backfill_active_of_pipeline_idx ON retrofill.backfill (pipeline_no, shard, requested_at) WHERE state IN ('cancelling', 'in_review', 'paused', 'running');
