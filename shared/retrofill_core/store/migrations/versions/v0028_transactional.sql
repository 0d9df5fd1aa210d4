ALTER TABLE retrofill.backfill_planner_relay
    ADD COLUMN transactional SMALLINT NOT NULL DEFAULT 0,
    ADD COLUMN taken_epoch BIGINT NOT NULL DEFAULT 0,
    ADD CONSTRAINT backfill_planner_relay_older_releases_wait CHECK (transactional = 0 OR taken_epoch = epoch);

ALTER TABLE retrofill.run_starter_relay
    ADD COLUMN transactional SMALLINT NOT NULL DEFAULT 0,
    ADD COLUMN taken_epoch BIGINT NOT NULL DEFAULT 0,
    ADD CONSTRAINT run_starter_relay_older_releases_wait CHECK (transactional = 0 OR taken_epoch = epoch);

ALTER TABLE retrofill.deadline_watcher_relay
    ADD COLUMN transactional SMALLINT NOT NULL DEFAULT 0,
    ADD COLUMN taken_epoch BIGINT NOT NULL DEFAULT 0,
    ADD CONSTRAINT deadline_watcher_relay_older_releases_wait CHECK (transactional = 0 OR taken_epoch = epoch);

ALTER TABLE retrofill.callback_runner_relay
    ADD COLUMN transactional SMALLINT NOT NULL DEFAULT 0,
    ADD COLUMN taken_epoch BIGINT NOT NULL DEFAULT 0,
    ADD CONSTRAINT callback_runner_relay_older_releases_wait CHECK (transactional = 0 OR taken_epoch = epoch);
