-- changefeed: ULID transactions on PostgreSQL, continued: the transactions themselves. The tables, the lock and how it is
-- burned, and what all of this is about, stand in ulid_locks.sql.

-- Reads the state of a pair whose lock is held and prepares this transaction for new_ulid() and ulid_sequence().
-- Returns the first ULID; the first `reserved` are left to the caller, who counts them by itself.
-- (It is one statement, because this runs in every transaction, and each statement costs more than what it does. It is
-- planned once: the server would do that anew each time, because a plan for known values looks a little cheaper.)
create function changefeed.ulid_enter(
    feed_id uuid, shard_id integer, incidents bigint, timeout integer, time_hint timestamptz, reserved bigint
) returns bytea
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    entered  record;
    ahead    bigint;
    -- What the session knows of the pairs that it has, each list with a space or comma at its end.
    pairs    text := '';
    highs    text := '';
    lows     text := '';
    guards   text := '';
    base     bigint;
    clean_up constant text := least(timeout * 3::bigint, 2147483647);
begin
    if time_hint is not null then
        -- What 48 bits hold; another time would come out as a smaller or larger ULID.
        if time_hint not between '1970-01-01 00:00:00Z' and '10889-08-02 05:31:50.655Z' then
            perform changefeed.ulid_misuse('a ULID holds times from 1970 to 10889, not ' || time_hint);
        end if;
        select l.ahead_milliseconds into ahead from changefeed.ulid_limit l;
        if extract(epoch from time_hint - clock_timestamp()) * 1000 > ahead then
            perform changefeed.ulid_misuse(format('the time hint %s is more than %s ms ahead of the database''s clock',
                                                  time_hint, ahead));
        end if;
    end if;
    if current_setting('changefeed.ulid_state', true) <> '' then
        pairs := current_setting('changefeed.ulid_state') || ' ';
        highs := current_setting('changefeed.ulid_high') || ' ';
        lows := current_setting('changefeed.ulid_low') || ' ';
        guards := rtrim(current_setting('changefeed.ulid_guard'), '}') || ',';
        base := current_setting('changefeed.ulid_base');
    end if;
    -- A prepared transaction would keep the shard's lock and state for as long as it likes, with no
    -- session that could be judged. The server prepares no transaction that has used UNLISTEN, whatever is done later in
    -- it, but it passes over that in a session that has never used LISTEN. Nothing of either is left after the commit.
    if current_setting('changefeed.ulid_has_listened', true) is distinct from 'on' then
        listen changefeed_ulid_transaction;
        perform set_config('changefeed.ulid_has_listened', 'on', false);
    end if;
    unlisten changefeed_ulid_transaction;
    -- The clock stood still or went back: keep the time, go on counting. Less than 2^61 ULIDs are left before the lower
    -- half would wrap around: on to the next millisecond. Otherwise begin anew, at random; the second-highest bit is
    -- cleared, so that counting upwards never overflows.
    insert into changefeed.ulid_guard as g (feed_id, shard_id, incidents, timeout, time, before_high, before_low,
                                            high, low, base)
    select feed_id, shard_id, incidents, timeout, h.happens, n.ulid_high, n.ulid_low,
           case when n.goes_on then n.ulid_high
                else substring(int8send((extract(epoch from h.happens) * 1000)::bigint) from 3)
                     || substring(uuid_send(n.random) from 1 for 2) end,
           reserved + case when n.goes_on then n.ulid_low
                           else uuid_hash_extended(n.random, 0) & -4611686018427387905 end,
           coalesce(base, nextval('changefeed.sequence'))
    from (select s.time, s.ulid_high, s.ulid_low, w.now, w.random,
                 s.time >= w.now and (s.ulid_low & 9223372036854775807) < 6917529027641081856 as goes_on
          from (select date_trunc('milliseconds', coalesce(time_hint, clock_timestamp())) as now,
                       gen_random_uuid() as random offset 0) w
          left join changefeed.shard_ulid s
              on s.feed_id = ulid_enter.feed_id and s.shard_id = ulid_enter.shard_id) n
    cross join lateral (select case when n.goes_on then n.time
                                    when n.time >= n.now then n.time + interval '1 millisecond'
                                    else n.now end as happens) h
    returning g.time as happens, g.high || int8send(g.low - reserved) as ulid,
              set_config('changefeed.ulid_state', pairs || g.feed_id || '/' || g.shard_id, true),
              set_config('changefeed.ulid_guard',
                         case guards when '' then '{"' else guards || '"' end || g.ctid || '"}', true),
              set_config('changefeed.ulid_high', highs || encode(g.high, 'hex'), true),
              set_config('changefeed.ulid_low', lows || g.low, true),
              set_config('changefeed.ulid_base', g.base::text, true),
              -- Burning frees only our lock. The server itself ends a silent session, and with it its
              -- row locks, but later than others burn its lock, so that the incident is counted.
              set_config('idle_in_transaction_session_timeout', clean_up, true),
              set_config('tcp_user_timeout', clean_up, true)
    into entered;
    if entered.happens not between '1970-01-01 00:00:00Z' and '10889-08-02 05:31:50.655Z' then
        perform changefeed.ulid_misuse('the ULIDs of this shard are used up');
    end if;
    -- The verification would have run already, and kept the shard's state locked until the commit.
    if current_setting('changefeed.ulid_low') = '' then
        perform changefeed.ulid_misuse(
            'this transaction has said SET CONSTRAINTS ... IMMEDIATE; begin a ULID transaction before that');
    end if;
    return entered.ulid;
end $$;

-- The pairs in their order, each once.
create function changefeed.ulid_pairs(inout feed_ids uuid[], inout shard_ids integer[])
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if coalesce(cardinality(feed_ids), 0) = 0 or cardinality(feed_ids) <> coalesce(cardinality(shard_ids), 0) then
        perform changefeed.ulid_misuse('a ULID transaction needs at least one feed, and one shard for each feed');
    end if;
    select array_agg(p.feed order by p.feed, p.shard), array_agg(p.shard order by p.feed, p.shard)
    into feed_ids, shard_ids
    from (select distinct u.feed, u.shard from unnest(feed_ids, shard_ids) u (feed, shard)) p;
end $$;

-- Begins with these pairs, or adds one: takes all locks in ascending order, and only then looks at anything. Returns
-- the first ULID of each pair, one after the other.
create function changefeed.ulid_open(
    feed_ids uuid[], shard_ids integer[], timeout integer, time_hint timestamptz, wait integer, reserved bigint,
    adding boolean
) returns bytea
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    incidents bigint[];
    ulids     bytea := '';
begin
    -- The usual case has nothing to sort.
    if cardinality(feed_ids) = 1 and cardinality(shard_ids) = 1 then
        return changefeed.ulid_enter(feed_ids[1], shard_ids[1],
            changefeed.ulid_take(feed_ids[1], shard_ids[1], timeout, wait, false, adding), timeout, time_hint, reserved);
    end if;
    select p.* into feed_ids, shard_ids from changefeed.ulid_pairs(feed_ids, shard_ids) p;
    for n in 1..cardinality(feed_ids) loop
        incidents[n] := changefeed.ulid_take(feed_ids[n], shard_ids[n], timeout, wait, false, adding);
    end loop;
    for n in 1..cardinality(feed_ids) loop
        ulids := ulids || changefeed.ulid_enter(feed_ids[n], shard_ids[n], incidents[n], timeout, time_hint, reserved);
    end loop;
    return ulids;
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
    perform changefeed.ulid_open(array[feed_id], array[shard_id], timeout, time_hint, wait, 0, false);
end $$;

-- For a transaction that writes to several pairs: feed_ids[n] and shard_ids[n] are one.
create function changefeed.begin_ulid_shards(
    feed_ids  uuid[],
    shard_ids integer[],
    timeout   integer default 1000,
    time_hint timestamptz default null,
    wait      integer default 30000
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform changefeed.ulid_open(feed_ids, shard_ids, timeout, time_hint, wait, 0, false);
end $$;

-- For client libraries, in one round trip: they count the first 2^36 ULIDs by themselves. Adding is
-- possible behind all pairs that the transaction has: in another order two transactions could wait for each other.
-- (In PL/pgSQL: a function in plain SQL is planned anew for every call.)
create function changefeed.ulid_begin(
    feed_ids uuid[], shard_ids integer[], timeout integer, time_hint timestamptz, wait integer
) returns bytea
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return changefeed.ulid_open(feed_ids, shard_ids, timeout, time_hint, wait, 68719476736, false);
end $$;

-- Refuses to add a pair that does not come after all pairs of this transaction.
create function changefeed.ulid_last(feed_id uuid, shard_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    pairs constant text[] := string_to_array(nullif(current_setting('changefeed.ulid_state', true), ''), ' ');
    last  constant text := pairs[cardinality(pairs)];
begin
    if last is not null and current_setting('changefeed.ulid_low') = '' then
        perform changefeed.ulid_misuse('commit_ulid_transaction was already called; commit');
    end if;
    if format('%s/%s', ulid_last.feed_id, ulid_last.shard_id) = any (pairs) then
        perform changefeed.ulid_misuse(format('feed %s shard %s is in this transaction already',
                                              ulid_last.feed_id, ulid_last.shard_id));
    end if;
    if (ulid_last.feed_id, ulid_last.shard_id) < (split_part(last, '/', 1)::uuid, split_part(last, '/', 2)::integer) then
        perform changefeed.ulid_misuse(format(
            'feed %s shard %s comes before %s, which this transaction has locked: shards are locked in ascending order; '
            'name all of them in begin_ulid_shards', ulid_last.feed_id, ulid_last.shard_id, last));
    end if;
end $$;

create function changefeed.add_ulid_shard(
    feed_id   uuid,
    shard_id  integer,
    timeout   integer default 1000,
    time_hint timestamptz default null,
    wait      integer default 30000
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform changefeed.ulid_last(feed_id, shard_id);
    perform changefeed.ulid_open(array[feed_id], array[shard_id], timeout, time_hint, wait, 0, true);
end $$;

create function changefeed.ulid_add(
    feed_id uuid, shard_id integer, timeout integer, time_hint timestamptz, wait integer
) returns bytea
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform changefeed.ulid_last(feed_id, shard_id);
    return changefeed.ulid_open(array[feed_id], array[shard_id], timeout, time_hint, wait, 68719476736, true);
end $$;

-- For client libraries whose transaction must not begin before it has the locks. First the rows of
-- the incidents are made, because a transaction with a fixed snapshot could not see one that is
-- inserted later; in a transaction of its own, so that nobody waits for that row with us.
create function changefeed.ulid_shards(feed_ids uuid[], shard_ids integer[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into changefeed.incident (feed_id, shard_id)
    select u.feed_id, u.shard_id from unnest($1, $2) u (feed_id, shard_id) order by u.feed_id, u.shard_id
    on conflict do nothing
$$;

-- Then the locks are taken for the session: all of them or none. The pairs are in ascending order already. Returns the
-- numbers of incidents, and what frees the locks.
create function changefeed.ulid_lock_session(
    feed_ids uuid[], shard_ids integer[], timeout integer, wait integer,
    out incidents bigint[], out lock_keys bigint[]
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    for n in 1..cardinality(feed_ids) loop
        incidents[n] := changefeed.ulid_take(feed_ids[n], shard_ids[n], timeout, wait, true, false);
        lock_keys[n] := changefeed.ulid_lock_key(feed_ids[n], shard_ids[n], incidents[n]);
    end loop;
exception when others then
    perform pg_advisory_unlock(k) from unnest(lock_keys) k;
    raise;
end $$;

create function changefeed.ulid_begin_locked(
    feed_ids uuid[], shard_ids integer[], incidents bigint[], timeout integer, time_hint timestamptz
) returns bytea
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    ulids bytea := '';
begin
    for n in 1..cardinality(feed_ids) loop
        ulids := ulids || changefeed.ulid_enter(feed_ids[n], shard_ids[n], incidents[n], timeout, time_hint, 68719476736);
    end loop;
    return ulids;
end $$;

-- The ULID for the next value of changefeed.sequence; a transaction of several pairs says of which. It runs once per row
-- of an `insert ... select`, so it has no `set search_path`; every operator is spelt with its schema instead.
create function changefeed.ulid_sequence(value bigint, feed_id uuid default null, shard_id integer default null)
returns bytea
language plpgsql volatile as $$
declare
    high  text := pg_catalog.current_setting('changefeed.ulid_high', true);
    low   text := pg_catalog.current_setting('changefeed.ulid_low', true);
    base  bigint;
    place integer;
begin
    if low operator(pg_catalog.<>) '' then
        base := pg_catalog.current_setting('changefeed.ulid_base');
    elsif low is not null and pg_catalog.current_setting('changefeed.ulid_state', true) operator(pg_catalog.<>) '' then
        perform changefeed.ulid_misuse('this ULID transaction is verified already; commit');
    end if;
    if base is null then
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
    if feed_id is not null or shard_id is not null then
        place := pg_catalog.array_position(
            pg_catalog.string_to_array(pg_catalog.current_setting('changefeed.ulid_state'), ' '),
            pg_catalog.format('%s/%s', feed_id, shard_id));
        if place is null then
            perform changefeed.ulid_misuse(pg_catalog.format(
                'feed %s shard %s is not in this ULID transaction; name it in begin_ulid_shards, or add it',
                feed_id, shard_id));
        end if;
        high := pg_catalog.split_part(high, ' ', place);
        low := pg_catalog.split_part(low, ' ', place);
    elsif pg_catalog.strpos(low, ' ') operator(pg_catalog.>) 0 then
        perform changefeed.ulid_misuse(
            'this ULID transaction writes to several shards: name the feed and the shard of the ULID');
    end if;
    return pg_catalog.decode(high, 'hex') operator(pg_catalog.||) pg_catalog.int8send(
               low::bigint operator(pg_catalog.+) (value operator(pg_catalog.-) base));
end $$;

create function changefeed.new_ulid(feed_id uuid default null, shard_id integer default null) returns bytea
language sql volatile as $$
    select changefeed.ulid_sequence(pg_catalog.nextval('changefeed.sequence'), $1, $2)
$$;

-- Verifies the transaction for all of its pairs: the COMMIT that follows cannot fail for them any more. Commit directly
-- afterwards: from here on the state rows are locked.
create function changefeed.commit_ulid_transaction() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(current_setting('changefeed.ulid_state', true), '') = '' then
        perform changefeed.ulid_misuse(
            'there is no ULID transaction to commit; call begin_ulid_transaction after BEGIN');
    elsif current_setting('changefeed.ulid_low', true) = '' then
        perform changefeed.ulid_misuse('commit_ulid_transaction was already called; commit');
    end if;
    set constraints changefeed.ulid_guard_check immediate;
end $$;

-- For symmetry with the other databases: a plain ROLLBACK frees everything here as well.
create function changefeed.rollback_ulid_transaction() returns void
language plpgsql as $$
begin
    raise exception 'changefeed: the ULID transaction is rolled back'
        using errcode = 'CF004', hint = 'End the transaction with ROLLBACK.';
end $$;

revoke all on all functions in schema changefeed from public;
