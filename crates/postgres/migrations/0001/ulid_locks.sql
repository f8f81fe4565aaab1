-- changefeed: ULID transactions on PostgreSQL.
--
--   begin;
--   select changefeed.begin_ulid_transaction('80270756-deeb-11ed-91f2-4f03a365d3f8', 0);
--   insert into event (shard, ulid, ...) values (0, changefeed.new_ulid(), ...);
--   select changefeed.commit_ulid_transaction();
--   commit;
--
-- Writers of one (feed_id, shard_id) queue on an advisory lock, so that the ULIDs they write are
-- increasing for every observer. The lock can be *burned*: its key contains the number of
-- incidents of the shard, so when its holder has been silent for the timeout, somebody raises the
-- number, and everybody moves on to a new lock.
--
-- A transaction can write to several pairs: begin_ulid_shards() takes a list of them, new_ulid(feed_id, shard_id)
-- names its pair. Locks are always taken in ascending order of the pairs, so nobody can wait in a circle. Every pair has
-- its own lock, its own state and its own incidents; the transaction commits for all of them or for none.
--
-- Correctness does not rest on that lock. The row of `shard_ulid` is locked only in the round trip
-- that commits, and there both it and the number of incidents must be what they were at the
-- beginning; otherwise the transaction fails. A deferred trigger does that, so no COMMIT can go without it;
-- commit_ulid_transaction() runs it, and so tells of a failure before the COMMIT.
--
-- Errors have codes of their own:
--   CF001 incident detected: roll back, call report_incident(feed_id, shard_id), try again
--   CF002 busy: living writers held the shard for the whole wait
--   CF003 burned: this transaction was judged dead, or found a newer state; it cannot commit
--   CF004 misuse: the message says of what

-- Feeds that are ordered by ULIDs name the feed of their transactions and their columns.
alter table changefeed.feed_source
    drop constraint feed_source_kind_check,
    add constraint feed_source_kind_check check (kind in ('captured', 'joined', 'ulid')),
    add column ulid_feed uuid,
    add column shard_column text,
    add column ulid_column text;

alter table changefeed.consumer
    drop constraint consumer_cursor_check,
    add constraint consumer_cursor_check
        check (cursor ~ '^[0-9]{1,18}$' or cursor ~ '^[0-7][0-9A-HJKMNP-TV-Z]{25}$');

create table changefeed.shard_ulid (
    feed_id   uuid not null,
    shard_id  integer not null,
    time      timestamptz(3) not null,
    ulid_high bytea not null check (length(ulid_high) = 8),
    ulid_low  bigint not null,
    primary key (feed_id, shard_id)
);

create table changefeed.incident (
    feed_id     uuid not null,
    shard_id    integer not null,
    count       bigint not null default 0,
    reported_at timestamptz,
    primary key (feed_id, shard_id)
);

-- How far ahead of the database's clock a time hint may be. A hint far in the future would keep its shard there: all
-- later ULIDs of the shard would tell that time.
create table changefeed.ulid_limit (
    only_row           boolean primary key default true check (only_row),
    ahead_milliseconds bigint not null default 60000 check (ahead_milliseconds >= 0)
);
insert into changefeed.ulid_limit default values;

-- Only differences between two values of one session mean anything, so a cache does no harm.
create sequence changefeed.sequence as bigint
    minvalue -9223372036854775808 start -9223372036854775808 cache 100;

-- A row in here makes sure that a ULID transaction cannot be committed without its verification: see ulid_verify(),
-- which also removes it. Unlogged: nothing in it outlives its transaction.
-- It also holds what the transaction began with. Only our functions write here, while the settings
-- of a session are anybody's: they serve new_ulid() and say where the guard is, and nothing else is
-- believed of them.
create unlogged table changefeed.ulid_guard (
    feed_id     uuid not null,
    shard_id    integer not null,
    incidents   bigint not null,
    timeout     integer not null,
    time        timestamptz(3) not null,
    before_high bytea,
    before_low  bigint,
    high        bytea not null,
    low         bigint not null,
    base        bigint not null
);

create function changefeed.ulid_misuse(message text) returns text
language plpgsql as $$
begin
    raise exception 'changefeed: %', message using errcode = 'CF004';
end $$;

-- Verifies that nobody has judged this transaction dead and nobody else has moved its shard, and stores where the
-- shard stands now. Runs at COMMIT, after everything that the session could do, once per pair and in the order in which
-- the pairs were locked. It believes no setting, because `reset all` undoes them.
create function changefeed.ulid_verify() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    drawn   constant bigint := nextval('changefeed.sequence') - new.base;
    counted bigint;
    done    record;
begin
    -- The number of incidents is locked, so that it is the newest and stays so until we have committed. From here on no
    -- ULID can be drawn, and the state row is locked: whoever does not commit at once is ended soon, but not before
    -- others have seen the silence and can count it. (It is one statement, because this runs in every transaction, and
    -- each costs more than what it does.)
    if new.before_high is null then
        with guard as (
            delete from changefeed.ulid_guard g
            where g.ctid = any (nullif(current_setting('changefeed.ulid_guard', true), '')::tid[])),
        counted as materialized (
            select i.count from changefeed.incident i
            where i.feed_id = new.feed_id and i.shard_id = new.shard_id for share)
        insert into changefeed.shard_ulid as s (feed_id, shard_id, time, ulid_high, ulid_low)
        select new.feed_id, new.shard_id, new.time, new.high, new.low + drawn
        where coalesce((select c.count from counted c), 0) = new.incidents and drawn < 1152921504606846976
        on conflict do nothing
        returning set_config('changefeed.ulid_low', '', true),
                  set_config('idle_in_transaction_session_timeout', least(new.timeout + 125::bigint, 2147483647)::text, true)
        into done;
    else
        with guard as (
            delete from changefeed.ulid_guard g
            where g.ctid = any (nullif(current_setting('changefeed.ulid_guard', true), '')::tid[])),
        counted as materialized (
            select i.count from changefeed.incident i
            where i.feed_id = new.feed_id and i.shard_id = new.shard_id for share)
        update changefeed.shard_ulid s
        set time = new.time, ulid_high = new.high, ulid_low = new.low + drawn
        where s.feed_id = new.feed_id and s.shard_id = new.shard_id
          and s.ulid_high = new.before_high and s.ulid_low = new.before_low
          and coalesce((select c.count from counted c), 0) = new.incidents and drawn < 1152921504606846976
        returning set_config('changefeed.ulid_low', '', true),
                  set_config('idle_in_transaction_session_timeout', least(new.timeout + 125::bigint, 2147483647)::text, true)
        into done;
    end if;
    if not found then
        if drawn >= 1152921504606846976 then
            perform changefeed.ulid_misuse('this transaction has used up its ULIDs; begin another one');
        end if;
        select i.count into counted from changefeed.incident i
        where i.feed_id = new.feed_id and i.shard_id = new.shard_id for share;
        if coalesce(counted, 0) <> new.incidents then
            raise exception 'changefeed: this transaction of feed % shard % was silent for too long, and '
                            'its lock was burned', new.feed_id, new.shard_id
                using errcode = 'CF003', hint = 'Roll back and do it again.';
        end if;
        raise exception 'changefeed: feed % shard % was moved by somebody else during this '
                        'transaction', new.feed_id, new.shard_id
            using errcode = 'CF003', hint = 'Roll back and do it again.';
    end if;
    if coalesce(current_setting('changefeed.ulid_guard', true), '') = '' then
        -- Somebody has reset the settings.
        delete from changefeed.ulid_guard g
        where g.feed_id = new.feed_id and g.shard_id = new.shard_id and g.base = new.base;
    end if;
    -- A number that was published must not be given again after a crash.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return null;
end $$;

create constraint trigger ulid_guard_check after insert on changefeed.ulid_guard
deferrable initially deferred for each row execute function changefeed.ulid_verify();
alter table changefeed.ulid_guard enable always trigger ulid_guard_check;

create function changefeed.ulid_lock_key(feed_id uuid, shard_id integer, incidents bigint)
returns bigint language sql stable as $$
    select pg_catalog.hashtextextended(
        pg_catalog.format('changefeed/%s/%s/%s', feed_id, shard_id, incidents), 0)
$$;

-- The functions from here to begin_ulid_transaction() are parts of others and run with the rights of their
-- callers; nobody but the owner may call them.

-- How far the COPY of a session has come: in the middle of one the server mostly waits for its
-- client, and every row is a sign of life.
create function changefeed.ulid_copied(pid integer) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    -- Before PostgreSQL 14 nobody can tell.
    if to_regclass('pg_catalog.pg_stat_progress_copy') is null then
        return null;
    end if;
    return (select p.bytes_processed from pg_catalog.pg_stat_progress_copy p
            where p.pid = ulid_copied.pid);
end $$;

-- Since when the holder of a lock has shown no sign of life; null while it lives, or while nobody
-- holds the lock. Life is a statement: one that runs on the server, or one that ended less than
-- the timeout ago. A session that waits for its client in the middle of a statement is as silent
-- as an idle one, but since when, only the caller can know: `waiting_for_client`, `copied`.
create function changefeed.ulid_holder(
    lock_key bigint, out pid integer, out idle_since timestamptz,
    out waiting_for_client timestamptz, out copied bigint
)
language sql set search_path = pg_catalog, pg_temp as $$
    -- Otherwise every look within one transaction shows what the first one saw.
    select pg_stat_clear_snapshot();
    select a.pid,
           case when a.state <> 'active' then a.state_change end,
           case when a.state = 'active' and a.wait_event_type = 'Client' then a.query_start end,
           case when a.state = 'active' and a.wait_event_type = 'Client'
                then changefeed.ulid_copied(a.pid) end
    from pg_locks l
    join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and (l.classid::bigint << 32) | l.objid::bigint = lock_key
    limit 1
$$;

-- Counts an incident, once for all who have seen it, so that the shard's writers move on to a new
-- lock. Call it outside of the transaction that got CF001, which is rolled back. Returns whether
-- this call raised the number.
create function changefeed.report_incident(
    feed_id uuid, shard_id integer, timeout integer default 1000
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    observed bigint := coalesce((select i.count from changefeed.incident i
                                 where i.feed_id = report_incident.feed_id
                                   and i.shard_id = report_incident.shard_id), 0);
    holder   record;
begin
    if report_incident.timeout is null or report_incident.timeout < 10 then
        perform changefeed.ulid_misuse('timeout must be at least 10 ms');
    end if;
    -- A client that opens a transaction around this and is lost in it must not keep the row locked.
    perform set_config('idle_in_transaction_session_timeout', report_incident.timeout::text, true),
            set_config('tcp_user_timeout', report_incident.timeout::text, true);
    select h.* into holder from changefeed.ulid_holder(
        changefeed.ulid_lock_key(report_incident.feed_id, report_incident.shard_id, observed)) h;
    -- Somebody else was quicker, or the holder woke up and is gone.
    if holder.pid is null
       or coalesce(holder.idle_since, holder.waiting_for_client, 'infinity')
          > clock_timestamp() - report_incident.timeout * interval '1 millisecond' then
        return false;
    end if;
    insert into changefeed.incident as i (feed_id, shard_id, count, reported_at)
    values (report_incident.feed_id, report_incident.shard_id, 1, clock_timestamp())
    on conflict (feed_id, shard_id) do update
    set count = i.count + 1, reported_at = excluded.reported_at
    where i.count = observed;
    return found;
end $$;

-- Waits for the lock of a pair, made with so many incidents, that somebody else holds.
create function changefeed.ulid_wait(
    feed_id uuid, shard_id integer, timeout integer, wait integer, in_session boolean, observed bigint
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    started     constant timestamptz := clock_timestamp();
    patience    constant interval := ulid_wait.timeout * interval '1 millisecond';
    old_timeout constant text := current_setting('lock_timeout');
    lock_key    constant bigint := changefeed.ulid_lock_key(ulid_wait.feed_id, ulid_wait.shard_id, observed);
    got         boolean := false;
    step        integer := 20;
    holder      record;
    stuck_pid   integer;
    stuck_query timestamptz;
    stuck_bytes bigint;
    stuck_since timestamptz;
begin
    while not got loop
        perform set_config('lock_timeout', step::text, true);
        begin
            if in_session then
                perform pg_advisory_lock(lock_key);
            else
                perform pg_advisory_xact_lock(lock_key);
            end if;
            got := true;
        exception when lock_not_available then
            got := false;
        end;
        perform set_config('lock_timeout', old_timeout, true);
        -- Whoever waits while the lock is burned has to prove that its client lives, by trying
        -- again: a waiter whose client is dead as well must not take the new lock.
        if (select coalesce(max(i.count), 0) from changefeed.incident i
            where i.feed_id = ulid_wait.feed_id and i.shard_id = ulid_wait.shard_id) <> observed then
            if got and in_session then
                perform pg_advisory_unlock(lock_key);
            end if;
            raise exception 'changefeed: the lock of feed % shard % was burned while waiting for it',
                ulid_wait.feed_id, ulid_wait.shard_id
                using errcode = 'CF001', hint = 'Roll back and try again.',
                      detail = format('%s/%s', ulid_wait.feed_id, ulid_wait.shard_id);
        end if;
        exit when got;
        select h.* into holder from changefeed.ulid_holder(lock_key) h;
        -- A timeout may come in the instant in which the lock is granted; one of the session stays.
        exit when holder.pid = pg_backend_pid();
        if holder.waiting_for_client is null then
            stuck_since := null;
        elsif stuck_since is null
              or (stuck_pid, stuck_query, stuck_bytes)
                 is distinct from (holder.pid, holder.waiting_for_client, holder.copied) then
            stuck_pid := holder.pid;
            stuck_query := holder.waiting_for_client;
            stuck_bytes := holder.copied;
            stuck_since := clock_timestamp();
        end if;
        if least(holder.idle_since, stuck_since) <= clock_timestamp() - patience then
            raise exception 'changefeed: the holder of feed % shard % has been silent for % ms',
                ulid_wait.feed_id, ulid_wait.shard_id, ulid_wait.timeout
                using errcode = 'CF001', detail = format('%s/%s', ulid_wait.feed_id, ulid_wait.shard_id),
                      hint = format('Roll back, run select changefeed.report_incident(%L, %s, %s), '
                                    'and try again.',
                                    ulid_wait.feed_id, ulid_wait.shard_id, ulid_wait.timeout);
        end if;
        if clock_timestamp() > started + ulid_wait.wait * interval '1 millisecond' then
            raise exception 'changefeed: feed % shard % is busy: others held it for % ms',
                ulid_wait.feed_id, ulid_wait.shard_id, ulid_wait.wait
                using errcode = 'CF002', hint = 'Try again later, or use more shards.';
        end if;
        -- Wake up when the holder will have been silent for long enough, not much later.
        step := greatest(1, least(100, greatest(5, ulid_wait.timeout / 10), 1 + extract(epoch from
            least(holder.idle_since, stuck_since) + patience - clock_timestamp()) * 1000));
    end loop;
end $$;

-- Refuses what cannot become a ULID transaction, with the reason.
create function changefeed.ulid_refuse(
    feed_id uuid, shard_id integer, timeout integer, wait integer, in_session boolean, adding boolean
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    opened constant text := nullif(current_setting('changefeed.ulid_state', true), '');
begin
    if not in_session and current_setting('transaction_isolation') <> 'read committed' then
        perform changefeed.ulid_misuse(
            'begin_ulid_transaction needs the isolation level read committed: with '
            || current_setting('transaction_isolation')
            || ' the snapshot is older than the lock, and the shard''s state would be stale');
    end if;
    if timeout is null or timeout < 10 or wait is null or wait < 0 then
        perform changefeed.ulid_misuse('timeout must be at least 10 ms, and wait not negative');
    end if;
    if feed_id is null or shard_id is null then
        perform changefeed.ulid_misuse('a ULID transaction needs a feed and a shard, not null');
    end if;
    if adding and opened is null then
        perform changefeed.ulid_misuse('there is no ULID transaction to add a shard to; begin one');
    end if;
    if not adding and opened is not null then
        perform changefeed.ulid_misuse('a ULID transaction of ' || opened
            || ' is already open in this transaction; name all shards in begin_ulid_shards, or use add_ulid_shard');
    end if;
end $$;

-- Takes the lock of a pair. `in_session` takes it for the session, for transactions that must not begin before they
-- have it; its caller unlocks. Returns the number of incidents that the lock was made with.
create function changefeed.ulid_take(
    feed_id uuid, shard_id integer, timeout integer, wait integer, in_session boolean, adding boolean
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    observed bigint;
    got      boolean;
begin
    -- Before anything is waited for. One look at all of it, because this runs in every transaction.
    if (feed_id is null or shard_id is null or timeout is null or timeout < 10 or wait is null or wait < 0
        or (coalesce(current_setting('changefeed.ulid_state', true), '') <> '') <> adding
        or not (in_session or current_setting('transaction_isolation') = 'read committed')) then
        perform changefeed.ulid_refuse(feed_id, shard_id, timeout, wait, in_session, adding);
    end if;
    select o.count, case when in_session then pg_try_advisory_lock(o.key) else pg_try_advisory_xact_lock(o.key) end
    into observed, got
    from (select c.count, hashtextextended(format('changefeed/%s/%s/%s', feed_id, shard_id, c.count), 0) as key
          from (select coalesce((select i.count from changefeed.incident i
                                 where i.feed_id = ulid_take.feed_id and i.shard_id = ulid_take.shard_id), 0)
                       as count offset 0) c offset 0) o;
    if not got then
        perform changefeed.ulid_wait(feed_id, shard_id, timeout, wait, in_session, observed);
    end if;
    return observed;
end $$;
