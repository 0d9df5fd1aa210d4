ALTER TABLE retrofill.run ADD COLUMN losses JSONB DEFAULT '{}'::jsonb NOT NULL;
