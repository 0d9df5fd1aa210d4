-- A generation for each timeline of Postgres (docs/decisions/postgres-went-back.md).

CREATE FUNCTION retrofill.timeline_here() RETURNS integer LANGUAGE sql STABLE AS $$
  SELECT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
$$;

-- The first statement of every transaction of a shard, and each numbering of a relay, updates its row.
-- A pooler may have moved the session to another server since its connection was checked.
CREATE FUNCTION retrofill.check_timeline() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  recorded integer;
BEGIN
  SELECT timeline INTO recorded FROM retrofill.installation;
  IF recorded <> retrofill.timeline_here() THEN
    RAISE EXCEPTION 'Postgres is on timeline %, but % is recorded', retrofill.timeline_here(), recorded
      USING ERRCODE = 'RF001';
  END IF;
  RETURN NULL;
END
$$;

CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.backfill_planner_shard
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();
CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.backfill_planner_relay
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();
CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.run_starter_shard
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();
CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.run_starter_relay
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();
CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.deadline_watcher_shard
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();
CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.deadline_watcher_relay
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();
CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.callback_runner_shard
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();
CREATE TRIGGER check_timeline BEFORE UPDATE ON retrofill.callback_runner_relay
  FOR EACH STATEMENT EXECUTE FUNCTION retrofill.check_timeline();

-- Epochs and ids continue in the range of the generation: no former owner has such an epoch, and no
-- lost commit has given out such an id.
CREATE FUNCTION retrofill.jump_to(generation bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  span CONSTANT bigint := 1000000000;
  name text;
  ids regclass;
BEGIN
  FOREACH name IN ARRAY ARRAY['backfill_planner', 'run_starter', 'deadline_watcher', 'callback_runner'] LOOP
    EXECUTE format('UPDATE retrofill.%I SET epoch = $1 + epoch %% $2', name || '_shard')
      USING generation * span, span;
    EXECUTE format('UPDATE retrofill.%I SET epoch = $1 + epoch %% $2, taken_epoch = $1 + epoch %% $2', name || '_relay')
      USING generation * span, span;
  END LOOP;
  FOREACH name IN ARRAY ARRAY['host', 'attempt', 'run', 'deadline'] LOOP
    ids := pg_get_serial_sequence('retrofill.' || name, 'id');
    PERFORM setval(ids, generation * span + coalesce(pg_sequence_last_value(ids), 0) % span + 1);
  END LOOP;
END
$$;

-- For services, which may change no other's rows: only where the timeline has changed. Published output
-- is fenced by the number of its publication; eight times over, a publisher of the lost time may have
-- been lost and replaced.
CREATE FUNCTION retrofill.begin_generation(generation bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  UPDATE retrofill.installation SET timeline = retrofill.timeline_here()
  WHERE system_identifier = (pg_control_system()).system_identifier::text
    AND timeline < retrofill.timeline_here();
  IF NOT FOUND THEN
    RAISE EXCEPTION 'Postgres is on its recorded timeline';
  END IF;
  PERFORM retrofill.jump_to(generation);
  UPDATE retrofill.run SET publication = publication + 8 WHERE state = 'staged';
END
$$;

REVOKE ALL ON FUNCTION retrofill.jump_to(bigint), retrofill.begin_generation(bigint) FROM PUBLIC;
