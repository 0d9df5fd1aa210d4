CREATE TABLE retrofill.backfill_progress (
  backfill_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  runs JSONB NOT NULL,
  CONSTRAINT backfill_progress_pkey PRIMARY KEY (backfill_id),
  CONSTRAINT backfill_progress_backfill_id_fkey FOREIGN KEY (backfill_id) REFERENCES retrofill.backfill (id)
);

ALTER TABLE retrofill.backfill ADD COLUMN budget_failed_runs INTEGER;
ALTER TABLE retrofill.backfill ADD COLUMN budget_core_hours DOUBLE PRECISION;
ALTER TABLE retrofill.backfill ADD COLUMN budget_until TIMESTAMP WITH TIME ZONE;
ALTER TABLE retrofill.attempt ADD COLUMN core_seconds DOUBLE PRECISION;
ALTER TABLE retrofill.attempt ADD COLUMN shuffle_bytes BIGINT;
ALTER TABLE retrofill.attempt ADD COLUMN rows_read BIGINT;
ALTER TABLE retrofill.attempt ADD COLUMN rows_written BIGINT;
