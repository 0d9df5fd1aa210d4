ALTER TABLE retrofill.run ADD COLUMN published JSONB;
