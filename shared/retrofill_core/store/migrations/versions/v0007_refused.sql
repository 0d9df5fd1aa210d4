CREATE TABLE retrofill.backfill_planner_outbox_refused (
	id BIGINT NOT NULL,
	topic TEXT NOT NULL,
	key BYTEA,
	value BYTEA,
	headers JSONB NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	reason TEXT NOT NULL,
	refused_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT backfill_planner_outbox_refused_pkey PRIMARY KEY (id)
);

CREATE TABLE retrofill.run_starter_outbox_refused (
	id BIGINT NOT NULL,
	topic TEXT NOT NULL,
	key BYTEA,
	value BYTEA,
	headers JSONB NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	reason TEXT NOT NULL,
	refused_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT run_starter_outbox_refused_pkey PRIMARY KEY (id)
);

CREATE TABLE retrofill.deadline_watcher_outbox_refused (
	id BIGINT NOT NULL,
	topic TEXT NOT NULL,
	key BYTEA,
	value BYTEA,
	headers JSONB NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	reason TEXT NOT NULL,
	refused_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT deadline_watcher_outbox_refused_pkey PRIMARY KEY (id)
);

CREATE TABLE retrofill.callback_runner_outbox_refused (
	id BIGINT NOT NULL,
	topic TEXT NOT NULL,
	key BYTEA,
	value BYTEA,
	headers JSONB NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	reason TEXT NOT NULL,
	refused_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT callback_runner_outbox_refused_pkey PRIMARY KEY (id)
);

