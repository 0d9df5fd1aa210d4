ALTER TABLE retrofill.deadline ALTER COLUMN run_id DROP NOT NULL;

ALTER TABLE retrofill.deadline
  ADD COLUMN task TEXT,
  ADD COLUMN interval_seconds DOUBLE PRECISION,
  ADD COLUMN callback_kind TEXT DEFAULT 'function' NOT NULL,
  ADD COLUMN callback_options JSONB DEFAULT '{}'::jsonb NOT NULL,
  ADD COLUMN digest_seconds DOUBLE PRECISION,
  ADD COLUMN digest_id BIGINT,
  ADD COLUMN recovered_at TIMESTAMP WITH TIME ZONE,
  ADD CONSTRAINT deadline_recovered_after_a_miss CHECK (recovered_at IS NULL OR state = 'missed');

CREATE UNIQUE INDEX deadline_of_backfill_key ON retrofill.deadline (backfill_id, alert) WHERE run_id IS NULL;

CREATE INDEX deadline_armed_of_backfill_idx ON retrofill.deadline (shard, due_at) WHERE state = 'armed' AND run_id IS NULL;

CREATE INDEX deadline_digest_id_idx ON retrofill.deadline (digest_id) WHERE digest_id IS NOT NULL;

CREATE TABLE retrofill.deadline_digest (
  id BIGINT NOT NULL,
  shard INTEGER NOT NULL,
  pipeline TEXT NOT NULL,
  alert TEXT NOT NULL,
  target TEXT NOT NULL,
  opened_at TIMESTAMP WITH TIME ZONE NOT NULL,
  closes_at TIMESTAMP WITH TIME ZONE NOT NULL,
  closed_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT deadline_digest_pkey PRIMARY KEY (id),
  CONSTRAINT deadline_digest_id_fkey FOREIGN KEY(id) REFERENCES retrofill.deadline (id)
);

CREATE UNIQUE INDEX deadline_digest_open_key ON retrofill.deadline_digest (pipeline, alert, target) WHERE closed_at IS NULL;

CREATE INDEX deadline_digest_open_idx ON retrofill.deadline_digest (shard, closes_at) WHERE closed_at IS NULL;

ALTER TABLE retrofill.callback
  ADD COLUMN kind TEXT DEFAULT 'function' NOT NULL,
  ADD COLUMN options JSONB DEFAULT '{}'::jsonb NOT NULL,
  ADD COLUMN event JSONB DEFAULT '{}'::jsonb NOT NULL,
  ADD COLUMN pipeline TEXT DEFAULT '' NOT NULL,
  ADD COLUMN runners_lost INTEGER DEFAULT 0 NOT NULL;

DROP INDEX retrofill.callback_pending_idx;

CREATE INDEX callback_pending_of_pipeline_idx ON retrofill.callback (shard, pipeline, next_try_at) WHERE state = 'pending';

CREATE TABLE retrofill.webhook_off (
  url TEXT NOT NULL,
  since TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  deadline_id BIGINT NOT NULL,
  CONSTRAINT webhook_off_pkey PRIMARY KEY (url)
);

ALTER TABLE retrofill.backfill ADD COLUMN traceparent TEXT;

CREATE INDEX run_succeeded_idx ON retrofill.run (pipeline_no, finished_at) WHERE state = 'succeeded';
