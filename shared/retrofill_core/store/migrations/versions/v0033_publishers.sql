ALTER TABLE retrofill.run
    ADD COLUMN publish_after TIMESTAMPTZ,
    ADD COLUMN publish_error JSONB;
