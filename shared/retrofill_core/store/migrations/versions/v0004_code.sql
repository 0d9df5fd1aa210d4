ALTER TABLE retrofill.backfill ADD COLUMN code_follows BOOLEAN DEFAULT false NOT NULL;

ALTER TABLE retrofill.run ADD COLUMN code_sha256 TEXT;
