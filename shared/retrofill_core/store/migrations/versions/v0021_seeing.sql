ALTER TABLE retrofill.host ADD COLUMN logs TEXT;

ALTER TABLE retrofill.attempt ADD COLUMN spark_app_id TEXT;

ALTER TABLE retrofill.attempt ADD COLUMN spark_ui TEXT;
