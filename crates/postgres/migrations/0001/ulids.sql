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
-- Correctness does not rest on that lock. The row of `shard_ulid` is locked only in the round trip
-- that commits, and there both it and the number of incidents must be what they were at the
-- beginning; otherwise the transaction fails.
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
    -- The transaction that stored this, by the `base` of its guard.
    base      bigint,
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

-- A row in here makes sure that a ULID transaction cannot be committed without its verification:
-- see ulid_guard_check(). Unlogged: nothing in it outlives its transaction.
-- It also holds what the transaction began with. Only our functions write here, while the settings
-- of a session are anybody's: they serve new_ulid() and say where the guard is, and nothing else is
-- believed of them.
create unlogged table changefeed.ulid_guard (
    feed_id     uuid not null,
    shard_id    integer not null,
    incidents   bigint not null,
    timeout     integer not null,
    time_ms     bigint not null,
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

-- Runs at COMMIT, after everything that the session could do. It believes no setting, because `reset
-- all` and `discard all` undo them: commit_ulid_transaction() leaves the number of the transaction
-- with the shard, and nothing else does.
create function changefeed.ulid_guard_check() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not exists (select from changefeed.shard_ulid s
                   where s.feed_id = new.feed_id and s.shard_id = new.shard_id
                     and s.base = new.base) then
        raise exception 'changefeed: this transaction was not verified by commit_ulid_transaction()'
            using errcode = 'CF004',
                  hint = 'Call begin_ulid_transaction after BEGIN, and commit_ulid_transaction '
                         'directly before COMMIT.';
    end if;
    -- A number that was published must not be given again after a crash.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return null;
end $$;

create constraint trigger ulid_guard_check after insert on changefeed.ulid_guard
deferrable initially deferred for each row execute function changefeed.ulid_guard_check();
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

-- Waits for the shard's lock. `in_session` takes it for the session, for transactions that must
-- not begin before they have it; its caller unlocks. Returns the number of incidents that the lock
-- was made with.
create function changefeed.ulid_lock(
    feed_id uuid, shard_id integer, timeout integer, wait integer, in_session boolean
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    started     constant timestamptz := clock_timestamp();
    patience    constant interval := ulid_lock.timeout * interval '1 millisecond';
    old_timeout constant text := current_setting('lock_timeout');
    observed    bigint;
    lock_key    bigint;
    got         boolean;
    step        integer := 20;
    holder      record;
    stuck_pid   integer;
    stuck_query timestamptz;
    stuck_bytes bigint;
    stuck_since timestamptz;
begin
    -- Before anything is waited for.
    if not in_session and current_setting('transaction_isolation') <> 'read committed' then
        perform changefeed.ulid_misuse(
            'begin_ulid_transaction needs the isolation level read committed: with '
            || current_setting('transaction_isolation')
            || ' the snapshot is older than the lock, and the shard''s state would be stale');
    end if;
    if ulid_lock.timeout is null or ulid_lock.timeout < 10
       or ulid_lock.wait is null or ulid_lock.wait < 0 then
        perform changefeed.ulid_misuse('timeout must be at least 10 ms, and wait not negative');
    end if;
    if ulid_lock.feed_id is null or ulid_lock.shard_id is null then
        perform changefeed.ulid_misuse('a ULID transaction needs a feed and a shard, not null');
    end if;
    if nullif(current_setting('changefeed.ulid_state', true), '') is not null then
        perform changefeed.ulid_misuse('a ULID transaction of '
            || current_setting('changefeed.ulid_state')
            || ' is already open in this transaction; a transaction writes to one shard');
    end if;
    select coalesce(max(i.count), 0) into observed from changefeed.incident i
    where i.feed_id = ulid_lock.feed_id and i.shard_id = ulid_lock.shard_id;
    lock_key := changefeed.ulid_lock_key(ulid_lock.feed_id, ulid_lock.shard_id, observed);
    if in_session then
        got := pg_try_advisory_lock(lock_key);
    else
        got := pg_try_advisory_xact_lock(lock_key);
    end if;
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
            where i.feed_id = ulid_lock.feed_id and i.shard_id = ulid_lock.shard_id) <> observed then
            if got and in_session then
                perform pg_advisory_unlock(lock_key);
            end if;
            raise exception 'changefeed: the lock of feed % shard % was burned while waiting for it',
                ulid_lock.feed_id, ulid_lock.shard_id
                using errcode = 'CF001', hint = 'Roll back and try again.';
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
                ulid_lock.feed_id, ulid_lock.shard_id, ulid_lock.timeout
                using errcode = 'CF001',
                      hint = format('Roll back, run select changefeed.report_incident(%L, %s, %s), '
                                    'and try again.',
                                    ulid_lock.feed_id, ulid_lock.shard_id, ulid_lock.timeout);
        end if;
        if clock_timestamp() > started + ulid_lock.wait * interval '1 millisecond' then
            raise exception 'changefeed: feed % shard % is busy: others held it for % ms',
                ulid_lock.feed_id, ulid_lock.shard_id, ulid_lock.wait
                using errcode = 'CF002', hint = 'Try again later, or use more shards.';
        end if;
        -- Wake up when the holder will have been silent for long enough, not much later.
        step := greatest(1, least(100, greatest(5, ulid_lock.timeout / 10), 1 + extract(epoch from
            least(holder.idle_since, stuck_since) + patience - clock_timestamp()) * 1000));
    end loop;
    return observed;
end $$;

-- Reads the shard's state and prepares this transaction for new_ulid() and ulid_sequence(). The
-- lock is held already. Of the ULIDs from (high, low) on, the first `reserved` are left to the
-- caller, who counts them by itself.
create function changefeed.ulid_enter(
    feed_id uuid, shard_id integer, incidents bigint, timeout integer, time_hint timestamptz,
    reserved bigint, out time_ms bigint, out high bytea, out low bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    happens timestamptz(3) := date_trunc('milliseconds', coalesce(time_hint, clock_timestamp()));
    before changefeed.shard_ulid;
    ahead  bigint;
    random bytea;
    base   bigint;
    guard  tid;
    clean_up constant bigint := least(timeout::bigint * 3, 2147483647);
begin
    -- What 48 bits hold; another time would come out as a smaller or larger ULID.
    if happens not between '1970-01-01 00:00:00Z' and '10889-08-02 05:31:50.655Z' then
        perform changefeed.ulid_misuse('a ULID holds times from 1970 to 10889, not ' || happens);
    end if;
    if time_hint > clock_timestamp() then
        select l.ahead_milliseconds into ahead from changefeed.ulid_limit l;
        if extract(epoch from time_hint - clock_timestamp()) * 1000 > ahead then
            perform changefeed.ulid_misuse(format(
                'the time hint %s is more than %s ms ahead of the database''s clock', happens, ahead));
        end if;
    end if;
    select s.* into before from changefeed.shard_ulid s
    where s.feed_id = ulid_enter.feed_id and s.shard_id = ulid_enter.shard_id;
    if happens <= before.time and (before.ulid_low & 9223372036854775807) >= 6917529027641081856 then
        -- Less than 2^61 ULIDs are left before the lower half would wrap around: on to the next millisecond.
        happens := before.time + interval '1 millisecond';
        if happens > '10889-08-02 05:31:50.655Z' then
            perform changefeed.ulid_misuse('the ULIDs of this shard are used up');
        end if;
    end if;
    if before.time is null or happens > before.time then
        -- The bytes of a random UUID that are random throughout.
        random := uuid_send(gen_random_uuid());
        time_ms := extract(epoch from happens) * 1000;
        high := substring(int8send(time_ms) from 3)
                || substring(random from 1 for 2);
        -- The second-highest bit is cleared, so that counting upwards never overflows.
        low := ('x' || encode(substring(random from 3 for 4) || substring(random from 10 for 4),
                              'hex'))::bit(64)::bigint & -4611686018427387905;
    else
        -- The clock stood still or went back: keep the time, go on counting.
        time_ms := extract(epoch from before.time) * 1000;
        high := before.ulid_high;
        low := before.ulid_low;
    end if;
    base := nextval('changefeed.sequence');
    -- A prepared transaction would keep the shard's lock and state for as long as it likes, with no
    -- session that could be judged. The server prepares no transaction that has used LISTEN, whatever
    -- is done later in it; with UNLISTEN nothing of it is left after the commit.
    listen changefeed_ulid_transaction;
    unlisten changefeed_ulid_transaction;
    insert into changefeed.ulid_guard (feed_id, shard_id, incidents, timeout, time_ms,
                                       before_high, before_low, high, low, base)
    values (ulid_enter.feed_id, ulid_enter.shard_id, ulid_enter.incidents, ulid_enter.timeout,
            ulid_enter.time_ms, before.ulid_high, before.ulid_low, ulid_enter.high,
            ulid_enter.low + reserved, base)
    returning ctid into guard;
    perform set_config('changefeed.ulid_state',
                       format('%s/%s', ulid_enter.feed_id, ulid_enter.shard_id), true),
            set_config('changefeed.ulid_guard', guard::text, true),
            set_config('changefeed.ulid_high', encode(high, 'hex'), true),
            set_config('changefeed.ulid_low', (low + reserved)::text, true),
            set_config('changefeed.ulid_base', base::text, true),
            -- Burning frees only our lock. The server itself ends a silent session, and with it its
            -- row locks, but later than others burn its lock, so that the incident is counted.
            set_config('idle_in_transaction_session_timeout', clean_up::text, true),
            set_config('tcp_user_timeout', clean_up::text, true);
end $$;

create function changefeed.begin_ulid_transaction(
    feed_id   uuid,
    shard_id  integer,
    timeout   integer default 1000,
    time_hint timestamptz default null,
    wait      integer default 30000
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform changefeed.ulid_enter(feed_id, shard_id,
        changefeed.ulid_lock(feed_id, shard_id, timeout, wait, false), timeout, time_hint, 0);
end $$;

-- The same for client libraries, in one round trip: they count the first 2^36 ULIDs by themselves.
-- (In PL/pgSQL: a function in plain SQL is planned anew for every call.)
create function changefeed.ulid_begin(
    feed_id uuid, shard_id integer, timeout integer, time_hint timestamptz, wait integer,
    out time_ms bigint, out high bytea, out low bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    begun record;
begin
    begun := changefeed.ulid_enter(feed_id, shard_id,
        changefeed.ulid_lock(feed_id, shard_id, timeout, wait, false), timeout, time_hint,
        68719476736);
    time_ms := begun.time_ms;
    high := begun.high;
    low := begun.low;
end $$;

-- For client libraries whose transaction must not begin before it has the lock. First the row of
-- the incidents is made, because a transaction with a fixed snapshot could not see one that is
-- inserted later; in a transaction of its own, so that nobody waits for that row with us.
create function changefeed.ulid_shard(feed_id uuid, shard_id integer) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into changefeed.incident (feed_id, shard_id) values ($1, $2) on conflict do nothing
$$;

-- Then the lock is taken for the session.
create function changefeed.ulid_lock_session(
    feed_id uuid, shard_id integer, timeout integer, wait integer
) returns bigint
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select changefeed.ulid_lock(feed_id, shard_id, timeout, wait, true)
$$;

create function changefeed.ulid_begin_locked(
    feed_id uuid, shard_id integer, incidents bigint, timeout integer, time_hint timestamptz,
    out time_ms bigint, out high bytea, out low bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    begun record;
begin
    begun := changefeed.ulid_enter(feed_id, shard_id, incidents, timeout, time_hint, 68719476736);
    time_ms := begun.time_ms;
    high := begun.high;
    low := begun.low;
end $$;

-- The ULID for the next value of changefeed.sequence. It runs once per row of an `insert ... select`, so it has
-- no `set search_path`; every operator is spelt with its schema instead.
create function changefeed.ulid_sequence(value bigint) returns bytea
language plpgsql volatile as $$
declare
    low  bigint;
    base bigint;
begin
    if pg_catalog.current_setting('changefeed.ulid_low', true) operator(pg_catalog.<>) '' then
        low := pg_catalog.current_setting('changefeed.ulid_low');
        base := pg_catalog.current_setting('changefeed.ulid_base');
    end if;
    if low is null then
        perform changefeed.ulid_misuse(
            'there is no ULID transaction here; call begin_ulid_transaction after BEGIN');
    elsif value is null or value operator(pg_catalog.<=) base
          or value operator(pg_catalog.>) pg_catalog.currval('changefeed.sequence') then
        -- Any other number would be a ULID behind or far ahead of its time.
        perform changefeed.ulid_misuse(
            'ulid_sequence takes nextval(''changefeed.sequence'') of this transaction, and nothing '
            'else');
    elsif value operator(pg_catalog.-) base operator(pg_catalog.>=) 1152921504606846976 then
        perform changefeed.ulid_misuse('this transaction has used up its ULIDs; begin another one');
    end if;
    return pg_catalog.decode(pg_catalog.current_setting('changefeed.ulid_high'), 'hex')
           operator(pg_catalog.||) pg_catalog.int8send(
               low operator(pg_catalog.+) (value operator(pg_catalog.-) base));
end $$;

create function changefeed.new_ulid() returns bytea
language sql volatile as $$
    select changefeed.ulid_sequence(pg_catalog.nextval('changefeed.sequence'))
$$;

-- Verifies that nobody has judged this transaction dead and nobody else has moved the shard, and
-- stores where the shard stands now. Commit directly afterwards: from here on the state row is
-- locked.
create function changefeed.commit_ulid_transaction() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    begun   changefeed.ulid_guard;
    counted bigint;
    low     bigint;
    happens timestamptz;
begin
    -- Nobody sees a row of this table but the transaction that wrote it.
    delete from changefeed.ulid_guard g
    where g.ctid = nullif(current_setting('changefeed.ulid_guard', true), '')::tid
    returning g.* into begun;
    if not found then
        if nullif(current_setting('changefeed.ulid_state', true), '') is not null then
            perform changefeed.ulid_misuse('commit_ulid_transaction was already called; commit');
        end if;
        perform changefeed.ulid_misuse(
            'there is no ULID transaction to commit; call begin_ulid_transaction after BEGIN');
    end if;
    -- Locked, so that it is the newest number and stays so until we have committed.
    select i.count into counted from changefeed.incident i
    where i.feed_id = begun.feed_id and i.shard_id = begun.shard_id for share;
    if coalesce(counted, 0) <> begun.incidents then
        raise exception 'changefeed: this transaction of feed % shard % was silent for too long, and '
                        'its lock was burned', begun.feed_id, begun.shard_id
            using errcode = 'CF003', hint = 'Roll back and do it again.';
    end if;
    happens := timestamptz 'epoch' + begun.time_ms * interval '1 millisecond';
    low := nextval('changefeed.sequence') - begun.base;
    if low >= 1152921504606846976 then
        perform changefeed.ulid_misuse('this transaction has used up its ULIDs; begin another one');
    end if;
    low := begun.low + low;
    if begun.before_high is null then
        insert into changefeed.shard_ulid (feed_id, shard_id, time, ulid_high, ulid_low, base)
        values (begun.feed_id, begun.shard_id, happens, begun.high, low, begun.base)
        on conflict do nothing;
    else
        update changefeed.shard_ulid s
        set time = happens, ulid_high = begun.high, ulid_low = low, base = begun.base
        where s.feed_id = begun.feed_id and s.shard_id = begun.shard_id
          and s.ulid_high = begun.before_high and s.ulid_low = begun.before_low;
    end if;
    if not found then
        raise exception 'changefeed: feed % shard % was moved by somebody else during this '
                        'transaction', begun.feed_id, begun.shard_id
            using errcode = 'CF003', hint = 'Roll back and do it again.';
    end if;
    perform set_config('changefeed.ulid_low', '', true),
            -- The state row is locked now: whoever does not commit at once is ended soon, but not
            -- before others have seen the silence and can count it.
            set_config('idle_in_transaction_session_timeout',
                       least(begun.timeout::bigint + 200, 2147483647)::text, true);
end $$;

-- For symmetry with the other databases: a plain ROLLBACK frees everything here as well.
create function changefeed.rollback_ulid_transaction() returns void
language plpgsql as $$
begin
    raise exception 'changefeed: the ULID transaction is rolled back'
        using errcode = 'CF004', hint = 'End the transaction with ROLLBACK.';
end $$;

revoke all on all functions in schema changefeed from public;
