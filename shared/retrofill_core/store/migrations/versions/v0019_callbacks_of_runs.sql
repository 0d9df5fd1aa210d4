ALTER TABLE retrofill.callback DROP CONSTRAINT callback_deadline_id_fkey;

ALTER TABLE retrofill.callback ADD COLUMN backfill_id TEXT,
  ADD COLUMN occasion TEXT,
  ADD COLUMN place INTEGER,
  ADD COLUMN collects BOOLEAN DEFAULT false NOT NULL,
  ADD COLUMN lock_only SMALLINT,
  ADD CONSTRAINT callback_backfill_id_fkey FOREIGN KEY (backfill_id) REFERENCES retrofill.backfill (id),
  ADD CONSTRAINT callback_occasion_of_a_backfill CHECK ((backfill_id IS NULL) = (occasion IS NULL)),
  ADD CONSTRAINT callback_place_in_a_list CHECK ((backfill_id IS NULL) = (place IS NULL)),
  ADD CONSTRAINT callback_collects_until_called CHECK (NOT collects OR state = 'pending');

CREATE UNIQUE INDEX callback_of_end_key ON retrofill.callback (backfill_id, place) WHERE occasion <> 'run_failed';

CREATE INDEX callback_of_backfill_idx ON retrofill.callback (backfill_id, collects, place) WHERE backfill_id IS NOT NULL;

CREATE TABLE retrofill.callback_run (
  run_id BIGINT NOT NULL,
  place INTEGER NOT NULL,
  callback_id BIGINT NOT NULL,
  CONSTRAINT callback_run_pkey PRIMARY KEY (run_id, place),
  CONSTRAINT callback_run_run_id_fkey FOREIGN KEY (run_id) REFERENCES retrofill.run (id),
  CONSTRAINT callback_run_callback_id_fkey FOREIGN KEY (callback_id) REFERENCES retrofill.callback (deadline_id)
);

CREATE INDEX callback_run_callback_idx ON retrofill.callback_run (callback_id, run_id);
