ALTER TABLE retrofill.host ADD COLUMN pool TEXT DEFAULT 'default' NOT NULL;

ALTER TABLE retrofill.host ADD COLUMN python TEXT;

ALTER TABLE retrofill.host ADD COLUMN spark TEXT;

ALTER TABLE retrofill.seat_wait ADD COLUMN pool TEXT DEFAULT 'default' NOT NULL;

ALTER TABLE retrofill.seat_wait DROP CONSTRAINT seat_wait_pkey;

ALTER TABLE retrofill.seat_wait ADD CONSTRAINT seat_wait_pkey PRIMARY KEY (shard, pool);
