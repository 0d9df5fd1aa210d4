ALTER TABLE retrofill.seat_wait ADD COLUMN since TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp();

CREATE INDEX attempt_newest_idx ON retrofill.attempt (backfill_id, id);
