ALTER TABLE retrofill.backfill ADD COLUMN undoes TEXT;

ALTER TABLE retrofill.run ADD COLUMN restores BIGINT;

ALTER TABLE retrofill.run ADD COLUMN undone_by BIGINT;
