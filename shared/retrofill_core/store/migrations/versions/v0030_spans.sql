CREATE INDEX run_span_idx ON retrofill.run
    USING gist (int8range(pipeline_no, pipeline_no, '[]'), tstzrange(interval_start, interval_end))
    WHERE state IN ('failed', 'succeeded');
