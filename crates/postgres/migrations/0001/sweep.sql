-- What a session remembers between two sweeps of a group. Shards are written as one number,
-- feed_id * 65536 + shard + 32768. A hint: what is wrong here is found late, and never numbered
-- wrongly.
create type changefeed.sweep_memory as (
    swept_at   timestamptz,
    -- News were looked for up to here.
    seen       pg_snapshot,
    moved      bigint,
    -- All shards are looked at one by one: since when, how far, and whether there is a hurry.
    round_at   timestamptz,
    round_to   integer,
    hurry      boolean,
    -- There was too much news to find its shards while this round was at work: another one follows.
    once_more  boolean,
    -- Shards that have to be visited again: left over or locked; and larger than one call.
    waiting    integer[],
    larger     integer[],
    -- From when on these were not known to be empty.
    behind_at  timestamptz,
    tidied_at  timestamptz
);

-- Numbers what is committed in a group, once. Any number of sweeps may run at the same time:
-- each locks the shards it works on and leaves those alone that another one has locked.
--
-- A call is bounded, in changes and in time, and below a statement_timeout that may be set; what is
-- left over is for the next one. Which shards have news is found by transaction id, starting from
-- the snapshot of the previous look. That snapshot is kept by the session, so that a sweep which
-- finds nothing writes nothing. A session without such a memory looks at every shard one by one.
--
-- A caller that compares snapshots itself, and calls this only after something was committed, says when
-- nothing had been: the lag is counted from there.
create function changefeed.sweep(sweep_group integer default 0, quiet_at timestamptz default null)
returns table (feed_id smallint, shard smallint, change_count bigint, lag_milliseconds bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Plans are made once per session, perhaps while the inbox is empty: they must not scan it whole.
-- Made for each call anew they would cost more than an idle sweep itself.
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- The most changes of one call, and of one look for shards with news.
    most     constant bigint := 100000;
    look     constant integer := 20000;
    -- The most of one shard while others wait for their turn.
    turn     constant bigint := 10000;
    -- How many shards are looked at one by one in one go, and how often, for safety's sake.
    stretch  constant integer := 500;
    every    constant interval := interval '60 seconds';
    swept    constant integer := coalesce(sweep.sweep_group, 0);
    setting  constant text := 'changefeed.swept_' || replace(swept::text, '-', '_');
    memory   changefeed.sweep_memory := nullif(current_setting(setting, true), '')::changefeed.sweep_memory;
    began    constant timestamptz := clock_timestamp();
    patience constant interval := current_setting('statement_timeout');
    -- The last piece may take as long as all before it, so this is half of the time there is.
    until    timestamptz := began + interval '500 milliseconds';
    moved    bigint;
    seen     pg_snapshot;
    lows     xid8[];
    highs    xid8[];
    known    integer;
    queue    integer[];
    missed   integer[] := '{}';
    again    integer[] := '{}';
    at       integer;
    since    timestamptz;
    one      record;
    total    bigint := 0;
    before   bigint;
    repeated boolean := false;
    rounds   integer := 0;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'changefeed: sweep needs the isolation level read committed, not %',
            current_setting('transaction_isolation')
            using errcode = 'feature_not_supported',
                  hint = 'A snapshot older than the lock would number changes twice.';
    end if;
    -- A number that was read by somebody must not be given again after a crash.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if (select c.system_identifier from changefeed.cluster c)
       is distinct from (select c.system_identifier from pg_control_system() c) then
        perform changefeed.restamp();
    end if;
    if patience > interval '0' then
        until := least(until, began + (statement_timestamp() + patience - began) / 4);
    end if;

    -- In a statement of its own: what is finished here, the next statement sees.
    select changefeed.without_us(pg_current_snapshot()), c.shards_moved into seen, moved
    from changefeed.cluster c;
    queue := coalesce(memory.waiting, '{}');
    since := memory.behind_at;
    memory.swept_at := greatest(memory.swept_at, least(quiet_at, began));
    if memory.seen is not null and memory.moved = moved then
        select f.lows, f.highs into lows, highs from changefeed.finished_between(memory.seen, seen) f;
        if lows is not null then
            -- Those with little news first.
            select coalesce(sum(n.count), 0), queue || coalesce(array_agg(n.at order by n.count), '{}')
            into known, queue
            from (
                select i.feed_id * 65536 + i.shard + 32768 as at, count(*) as count
                from (
                    select i.feed_id, i.shard
                    from unnest(lows, highs) r(low, high)
                    cross join lateral (select i.feed_id::integer, i.shard::integer
                                        from changefeed.inbox i
                                        where i.xid::text::bigint between r.low::text::bigint
                                                                  and r.high::text::bigint
                                        offset 0) i
                    limit look
                ) i
                group by i.feed_id, i.shard
            ) n;
        end if;
    end if;
    if known >= look and memory.round_to is not null and memory.hurry then
        memory.once_more := true;
    elsif memory.seen is null or memory.moved <> moved or known >= look then
        memory.round_at := began;
        memory.round_to := -2147483648;
        memory.hurry := true;
    elsif memory.round_to is null
          -- A clock that was set back is no reason to wait.
          and began not between memory.round_at and memory.round_at + every then
        memory.round_at := began;
        memory.round_to := -2147483648;
        memory.hurry := false;
    end if;
    memory.seen := seen;
    memory.moved := moved;

    loop
        before := total;
        foreach at in array queue loop
            if total >= most or total > 0 and clock_timestamp() >= until then
                if repeated then
                    again := again || at;
                else
                    missed := missed || at;
                end if;
                continue;
            end if;
            select n.* into one
            from changefeed.number_shard((at >> 16)::smallint, ((at & 65535) - 32768)::smallint,
                swept, coalesce(since, memory.swept_at), until,
                case when cardinality(queue) > 1 then least(turn, most - total)
                     else most - total end) n;
            if one.changes is null then
                -- Somebody else has it.
                if one.unfinished then
                    missed := missed || at;
                end if;
                continue;
            end if;
            if one.unfinished then
                again := again || at;
            end if;
            if one.changes > 0 then
                total := total + one.changes;
                feed_id := at >> 16;
                shard := (at & 65535) - 32768;
                change_count := one.changes;
                lag_milliseconds := one.lag_milliseconds;
                return next;
            end if;
        end loop;
        exit when total >= most or clock_timestamp() >= until and rounds > 0;
        if memory.round_to is not null and (memory.hurry or rounds = 0) then
            rounds := rounds + 1;
            select case when count(*) < stretch then null else max(d.at) end,
                   coalesce(array_agg(d.at order by d.at) filter (where d.news), '{}')
            into memory.round_to, queue
            from (
                select d.feed_id * 65536 + d.shard + 32768 as at,
                       p.resume_xid is not null
                       or exists (select from changefeed.inbox i
                                  where i.feed_id = d.feed_id and i.shard = d.shard
                                    and i.xid >= pg_snapshot_xmax(p.snapshot))
                       or exists (select from pg_snapshot_xip(p.snapshot) x
                                  cross join lateral (
                                      select from changefeed.inbox i
                                      where i.feed_id = d.feed_id and i.shard = d.shard and i.xid = x
                                      offset 0) i) as news
                from (select d.feed_id::integer, d.shard::integer from changefeed.shard_definition d
                      where d.sweep_group = swept
                        and (d.feed_id, d.shard) > ((memory.round_to >> 16)::smallint,
                                                    ((memory.round_to & 65535) - 32768)::smallint)
                      order by d.feed_id, d.shard
                      limit stretch) d
                cross join lateral (
                    select p.snapshot, p.resume_xid
                    from changefeed.progress p
                    where p.feed_id = d.feed_id and p.shard = d.shard
                    order by p.last_change_sequence_number desc, p.sweep_id desc
                    limit 1
                ) p
            ) d;
            if memory.round_to is null and memory.once_more then
                memory.round_to := -2147483648;
                memory.once_more := false;
            end if;
        elsif cardinality(memory.larger) > 0 then
            queue := memory.larger;
            memory.larger := '{}';
        elsif cardinality(again) > 0 and total > before and clock_timestamp() < until then
            -- Everybody had a turn: those with more to number have another.
            repeated := true;
            queue := again;
            again := '{}';
        else
            exit;
        end if;
    end loop;

    -- Those that were not reached go first the next time, also before others with little news; not
    -- those that had their turn.
    memory.waiting := array(select w.at from unnest(missed || memory.larger) w(at)
                            where w.at <> all (again));
    memory.larger := again;
    if cardinality(memory.waiting) > 5000 then
        memory.waiting := '{}';
        memory.seen := null;
    end if;
    memory.behind_at := case when cardinality(memory.waiting || memory.larger) = 0 then null
                             else coalesce(memory.behind_at, memory.swept_at, began) end;
    memory.swept_at := began;
    if total > 0 and (memory.tidied_at is null or began not between memory.tidied_at
                      and memory.tidied_at + interval '200 milliseconds') then
        memory.tidied_at := began;
        perform changefeed.tidy();
    end if;
    perform set_config(setting, memory::text, false);
end $$;

-- Leases ----------------------------------------------------------------------------------------

create table changefeed.lease (
    name             text primary key,
    owner            text not null,
    generation       bigint not null,
    -- Grows whenever the lease is granted or renewed.
    renewal          bigint not null default 1,
    ttl_milliseconds integer not null,
    expires_at       timestamptz not null
);

-- Takes a lease that is free or expired, or renews it for the same owner; null while somebody
-- else holds it, together with the renewal that was seen. The clock is the database's. It may have
-- been set back, and then a dead owner's lease would seem to last: whoever has seen one and the
-- same renewal for longer than its time, by a clock of their own, says which, and takes that.
create function changefeed.hold_lease(
    lease_name text, lease_owner text, ttl_milliseconds integer, stale_renewal bigint,
    out generation bigint, out renewal bigint, out held_for integer)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    insert into changefeed.lease as l (name, owner, generation, ttl_milliseconds, expires_at)
    values (lease_name, lease_owner, 1, hold_lease.ttl_milliseconds,
            clock_timestamp() + hold_lease.ttl_milliseconds * interval '1 millisecond')
    on conflict (name) do update
    set owner = excluded.owner,
        generation = case when l.owner = excluded.owner and l.expires_at > clock_timestamp()
                          then l.generation else l.generation + 1 end,
        renewal = l.renewal + 1,
        ttl_milliseconds = excluded.ttl_milliseconds,
        -- By the time now, and not when we began to wait for the row: a newer call of the same owner may
        -- have been granted more meanwhile.
        expires_at = clock_timestamp() + excluded.ttl_milliseconds * interval '1 millisecond'
    where l.owner = excluded.owner or l.expires_at <= clock_timestamp()
       or l.renewal = stale_renewal
    returning l.generation into hold_lease.generation;
    if not found then
        select l.renewal, l.ttl_milliseconds into hold_lease.renewal, hold_lease.held_for
        from changefeed.lease l where l.name = lease_name;
    end if;
end $$;

-- The same for those who may sweep and have no rights on the table: leases of sweep groups, and none
-- that outlives its owner by much.
create function changefeed.take_lease(
    lease_name text, lease_owner text, ttl_milliseconds integer, stale_renewal bigint default null,
    out generation bigint, out renewal bigint, out held_for integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if lease_name !~ '^sweep/-?[0-9]{1,5}$' or ttl_milliseconds not between 1 and 60000
       or num_nulls(lease_name, lease_owner, ttl_milliseconds) > 0 then
        raise exception 'changefeed: take_lease is for sweep groups, such as sweep/0, and for 1 to 60000 milliseconds'
            using errcode = 'invalid_parameter_value',
                  hint = 'Renew the lease before it ends instead of taking it for longer.';
    end if;
    select h.* into generation, renewal, held_for
    from changefeed.hold_lease(lease_name, lease_owner, ttl_milliseconds, stale_renewal) h;
end $$;

-- Gives a lease of a sweep group back. The row stays: its generation must go on growing.
create function changefeed.free_lease(lease_name text, lease_owner text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update changefeed.lease set expires_at = clock_timestamp()
    where name = lease_name and owner = lease_owner and name ~ '^sweep/';
$$;

-- Sweeps until the duration has passed. Of any number of callers one works per group, together
-- with the changefeed program under the same lease; the others wait to take over, and return
-- with zeros if they could not within wait_milliseconds. A procedure, because a function would
-- show nothing to anybody before it ends.
create procedure changefeed.sweep_loop(
    sweep_group                integer default 0,
    wait_milliseconds          integer default 30000,
    duration_milliseconds      integer default 50000,
    sleep_milliseconds         integer default 20,
    inout change_count         bigint default null,
    inout max_lag_milliseconds bigint default null,
    inout iterations           bigint default null
)
language plpgsql as $$
declare
    -- A row, not a lock: a client that freezes would keep the lock.
    ttl       constant integer := 1000;
    lease     text;
    holder    text;
    -- Until when to wait for the lease, and once it was had, until when to work.
    deadline  timestamptz;
    -- A statement_timeout would end the call without a result.
    latest    timestamptz;
    -- The renewal that we wait for to end, how long it may last, and for how many naps of ours it has
    -- done so: they are counted, so that no clock has to be believed.
    renewal   bigint;
    held_for  integer;
    naps      integer := 0;
    taken     record;
    found_now bigint;
    lag_now   bigint;
begin
    -- For the time of a transaction, and so again after every commit: a procedure that commits can have no path
    -- of its own, and the caller's may lead to anybody's operators.
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    lease := 'sweep/' || sweep_group;
    holder := format('sweep_loop/%s/%s', pg_backend_pid(), clock_timestamp());
    deadline := clock_timestamp() + coalesce(wait_milliseconds, 30000) * interval '1 millisecond';
    latest := statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') * 0.8;
    if sweep_group is null or least(wait_milliseconds, duration_milliseconds, sleep_milliseconds) < 0
    then
        raise exception 'changefeed: sweep_loop needs a sweep group, and no time may be negative'
            using errcode = 'invalid_parameter_value';
    end if;
    change_count := 0;
    max_lag_milliseconds := 0;
    iterations := 0;
    loop
        select * into taken from changefeed.take_lease(lease, holder, ttl,
            case when naps * 200 > held_for * 1.5 then renewal end);
        if taken.generation is null then
            commit;
            perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
            if pg_catalog.clock_timestamp() >= least(deadline, latest) then
                return;
            end if;
            naps := case when taken.renewal = renewal then naps + 1 else 0 end;
            renewal := taken.renewal;
            held_for := taken.held_for;
            -- Short naps instead of one long wait for a lock, which would hold back vacuum.
            perform pg_catalog.pg_sleep(least(0.2, greatest(0.001,
                extract(epoch from deadline - pg_catalog.clock_timestamp()))));
            continue;
        end if;
        commit;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        if iterations = 0 then
            deadline := pg_catalog.clock_timestamp()
                        + coalesce(duration_milliseconds, 50000) * interval '1 millisecond';
        end if;
        select coalesce(sum(s.change_count), 0), coalesce(max(s.lag_milliseconds), 0)
        into found_now, lag_now
        from changefeed.sweep(sweep_group) s;
        commit;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        change_count := change_count + found_now;
        max_lag_milliseconds := greatest(max_lag_milliseconds, lag_now);
        iterations := iterations + 1;
        exit when pg_catalog.clock_timestamp() >= least(deadline, latest);
        -- A full sweep has left something over.
        if found_now < 100000 then
            perform pg_catalog.pg_sleep(coalesce(sleep_milliseconds, 20) / 1000.0);
        end if;
    end loop;
    perform changefeed.free_lease(lease, holder);
    commit;
end $$;
