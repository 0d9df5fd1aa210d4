CREATE TABLE retrofill.run_cancel (
  backfill_id TEXT NOT NULL,
  run_id BIGINT NOT NULL,
  ce_id TEXT,
  requested_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT run_cancel_pkey PRIMARY KEY (backfill_id, run_id),
  CONSTRAINT run_cancel_backfill_id_fkey FOREIGN KEY (backfill_id) REFERENCES retrofill.backfill (id)
);

ALTER TABLE retrofill.attempt ADD COLUMN release_requested BOOLEAN DEFAULT false NOT NULL;
