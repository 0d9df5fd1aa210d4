-- How many seats live and queued attempts could use, in the pool with most of them. The chart adds which pools count.
SELECT coalesce(max(wanted), 0)::bigint FROM (
  SELECT pool, sum(wanted) AS wanted FROM (
    -- A pipeline's limit applies to all its backfills together. Paused ones only have live attempts.
    SELECT pool, greatest(sum(live), least(most, sum(live + waiting))) AS wanted FROM (
      SELECT coalesce(b.definition ->> 'pool', 'default') AS pool, p.no, p.max_active_runs AS most, live.n AS live,
        CASE WHEN b.state = 'running' THEN least(greatest(b.max_active_runs - live.n, 0), queued.n) ELSE 0 END AS waiting
      FROM retrofill.backfill AS b
      JOIN retrofill.pipeline AS p ON p.no = b.pipeline_no
      CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM retrofill.attempt AS a WHERE a.backfill_id = b.id AND a.slot IS NOT NULL
      ) AS live
      -- No more than could start: towards the end of a backfill, batches are as small as keeps all drivers busy.
      CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM (
          SELECT FROM retrofill.run AS r WHERE r.backfill_id = b.id AND r.state = 'queued' LIMIT b.max_active_runs
        ) AS next
      ) AS queued
      WHERE b.state IN ('running', 'paused', 'cancelling')
    ) AS of_backfills GROUP BY pool, no, most
  ) AS of_pipelines GROUP BY pool
) AS of_pools
