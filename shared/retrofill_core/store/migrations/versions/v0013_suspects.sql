ALTER TABLE retrofill.run ADD COLUMN lost_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE retrofill.attempt ADD COLUMN suspect_server TEXT;

CREATE UNIQUE INDEX attempt_suspect_server_key ON retrofill.attempt (suspect_server) WHERE slot IS NOT NULL;

CREATE INDEX run_suspect_idx ON retrofill.run (backfill_id, lost_at) WHERE state = 'queued' AND lost_at IS NOT NULL;
