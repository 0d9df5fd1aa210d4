ALTER TABLE retrofill.installation ADD COLUMN system_identifier TEXT;

ALTER TABLE retrofill.installation ADD COLUMN timeline INTEGER;
