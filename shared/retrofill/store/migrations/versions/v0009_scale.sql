-- The next moments of a shard, and the walk through its armed deadlines: by id too, as all of a plan may be due at once.
CREATE INDEX deadline_due_idx ON retrofill.deadline (shard, due_at, id) WHERE state = 'armed';

DROP INDEX retrofill.deadline_armed_idx;

-- The first misses of a digest in their order, without a sort of them all.
CREATE INDEX deadline_missed_in_digest_idx ON retrofill.deadline (digest_id, decided_at, due_at, id) WHERE digest_id IS NOT NULL;

DROP INDEX retrofill.deadline_digest_id_idx;
