ALTER TABLE retrofill.run
  ADD COLUMN outputs JSONB,
  ADD COLUMN publication INTEGER DEFAULT 0 NOT NULL,
  ADD CONSTRAINT run_publishes_something CHECK (state <> 'publishing' OR outputs IS NOT NULL);
