ALTER TABLE retrofill.seat_wait ADD COLUMN since TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp();
