CREATE TABLE retrofill.table_place (
    identity TEXT NOT NULL,
    pipeline_no BIGINT NOT NULL,
    key_columns TEXT NOT NULL,
    CONSTRAINT table_place_pkey PRIMARY KEY (identity, pipeline_no),
    CONSTRAINT table_place_pipeline_no_fkey FOREIGN KEY(pipeline_no) REFERENCES retrofill.pipeline (no)
);
