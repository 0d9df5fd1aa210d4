ALTER TABLE retrofill.backfill_planner_shard ADD COLUMN trying_topic TEXT;

ALTER TABLE retrofill.backfill_planner_shard ADD COLUMN trying_offset BIGINT;

ALTER TABLE retrofill.backfill_planner_shard ADD COLUMN trying_deaths SMALLINT;

ALTER TABLE retrofill.backfill_planner_shard_offset ADD COLUMN taken_offset BIGINT;

ALTER TABLE retrofill.run_starter_shard ADD COLUMN trying_topic TEXT;

ALTER TABLE retrofill.run_starter_shard ADD COLUMN trying_offset BIGINT;

ALTER TABLE retrofill.run_starter_shard ADD COLUMN trying_deaths SMALLINT;

ALTER TABLE retrofill.run_starter_shard_offset ADD COLUMN taken_offset BIGINT;

ALTER TABLE retrofill.deadline_watcher_shard ADD COLUMN trying_topic TEXT;

ALTER TABLE retrofill.deadline_watcher_shard ADD COLUMN trying_offset BIGINT;

ALTER TABLE retrofill.deadline_watcher_shard ADD COLUMN trying_deaths SMALLINT;

ALTER TABLE retrofill.deadline_watcher_shard_offset ADD COLUMN taken_offset BIGINT;

ALTER TABLE retrofill.callback_runner_shard ADD COLUMN trying_topic TEXT;

ALTER TABLE retrofill.callback_runner_shard ADD COLUMN trying_offset BIGINT;

ALTER TABLE retrofill.callback_runner_shard ADD COLUMN trying_deaths SMALLINT;

ALTER TABLE retrofill.callback_runner_shard_offset ADD COLUMN taken_offset BIGINT;

