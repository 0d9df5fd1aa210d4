-- The next moments of a shard, and the walk through its armed deadlines: by id too, as all of a plan may be due at once.
CREATE INDEX deadline_due_idx ON retrofill.deadline (shard, due_at, id) WHERE state = 'armed';

DROP INDEX retrofill.deadline_armed_idx;

-- The first misses of a digest in their order, without a sort of them all.
CREATE INDEX deadline_missed_in_digest_idx ON retrofill.deadline (digest_id, decided_at, due_at, id) WHERE digest_id IS NOT NULL;

DROP INDEX retrofill.deadline_digest_id_idx;

ALTER TABLE retrofill.backfill ADD COLUMN purged_at TIMESTAMP WITH TIME ZONE;

-- What a purge has not been through, in the order of the ends.
CREATE INDEX backfill_to_purge_idx ON retrofill.backfill (ended_at, id) WHERE ended_at IS NOT NULL AND purged_at IS NULL;

-- When the last purge was.
CREATE INDEX backfill_purged_at_idx ON retrofill.backfill (purged_at) WHERE purged_at IS NOT NULL;

-- Which of those that a purge was through overlap with a backfill that ended since.
CREATE INDEX backfill_purged_idx ON retrofill.backfill USING gist (int8range(pipeline_no, pipeline_no, '[]'), covers) WHERE purged_at IS NOT NULL;
