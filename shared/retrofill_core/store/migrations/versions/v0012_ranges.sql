ALTER TABLE retrofill.run ADD COLUMN range_limit INTEGER;

ALTER TABLE retrofill.attempt
  DROP CONSTRAINT attempt_outcome_known,
  ADD CONSTRAINT attempt_outcome_known CHECK (outcome IS NULL OR outcome IN ('cancelled', 'done', 'failed', 'lost', 'released')),
  ADD CONSTRAINT attempt_mode_known CHECK (mode IN ('each', 'publish', 'range'));
