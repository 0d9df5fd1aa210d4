CREATE INDEX attempt_ended_idx ON retrofill.attempt (pipeline_no, ended_at) WHERE ended_at IS NOT NULL AND mode <> 'publish';
