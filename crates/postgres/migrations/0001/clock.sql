-- The clock ------------------------------------------------------------------------------------------

-- The latest time that was seen on the server's clock.
create table changefeed.clock (
    singleton boolean primary key default true check (singleton),
    latest    timestamptz not null default clock_timestamp(),
    -- The last step back, while events of before it may still have to be brought back.
    step_to   timestamptz,
    step      interval,
    -- How far what is to come was looked at, where that is too much for one look.
    looked_to timestamptz
);
insert into changefeed.clock default values;

-- The time, for whatever is put off or held until later. It is written down if it is far ahead of what
-- was last seen: should that have been a step of the clock which is taken back before anybody looks,
-- the next look finds it all the same. Without waiting for anybody, who would write down the same.
create function changefeed.noted_time() returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    now_at timestamptz := clock_timestamp();
begin
    perform from changefeed.clock c where c.latest < now_at - interval '15 seconds';
    if found then
        update changefeed.clock c set latest = now_at
        where c.ctid = any (array(
            select c.ctid from changefeed.clock c where c.latest < now_at for update skip locked));
    end if;
    return now_at;
end $$;

-- Looks whether the clock was set back, and if so, brings back what lies ahead only because of that:
-- events and rows that are due, and leases of owners that may be dead, would wait for as long as the
-- step was. Returns how far back the clock went, in milliseconds, to whoever noticed. Any number may
-- call it at the same time, and again when it is unknown whether it was done.
--
-- A step forward that was taken back before a look leaves events that were captured at times that are
-- still to come. They are looked for among all that is to come, a part at each look.
create function changefeed.keep_time(out stepped bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- Events that are brought back by one call, and events of a trigger that it looks at.
    batch  constant integer := 20000;
    looked constant integer := 2000;
    known  changefeed.clock;
    now_at timestamptz := clock_timestamp();
    far    timestamptz;
    leases regclass;
    done   bigint;
begin
    select c.* into known from changefeed.clock c;
    if known.step is null and now_at between known.latest - interval '5 seconds'
                                         and known.latest + interval '10 seconds' then
        return;
    end if;
    select c.* into known from changefeed.clock c for update skip locked;
    if not found then
        return;
    end if;
    now_at := clock_timestamp();
    if now_at < known.latest - interval '5 seconds' then
        known.step_to := now_at;
        known.step := known.latest - now_at;
        -- What is held since the step, is held for less.
        far := now_at + known.step / 2;
        update changefeed.lease l set expires_at = l.expires_at - known.step
        where l.expires_at > far;
        -- What was to come after the step, and what somebody holds.
        update changefeed.event e set due_at = e.due_at - known.step
        where e.ctid = any (array(
            select e.ctid from changefeed.event_trigger t
            join changefeed.event e on e.trigger_id = t.trigger_id and e.due_at > far
            where e.due_at > now_at + known.step or e.locked_by is not null
            for update of e skip locked));
        for leases in
            select c.oid::regclass from pg_class c
            where c.relnamespace = 'changefeed'::regnamespace and c.relkind = 'r'
              and c.relname ~ '^leases_[0-9a-f]{16}_[0-9]+$'
        loop
            begin
                execute format(
                    'update %1$s q set
                         _changefeed_lease_expiration_time = q._changefeed_lease_expiration_time
                             - case when q._changefeed_lease_expiration_time > $1 then $2
                                    else interval ''0'' end,
                         _changefeed_retry_time = q._changefeed_retry_time
                             - case when q._changefeed_retry_time > $1 then $2
                                    else interval ''0'' end
                     where q.ctid = any (array(
                         select q.ctid from %1$s q
                         where q._changefeed_lease_expiration_time > $1
                            or q._changefeed_retry_time > $1
                         for update skip locked))', leases) using far, known.step;
            exception when undefined_table or undefined_column or insufficient_privilege then
                null;
            end;
        end loop;
        stepped := (extract(epoch from known.step) * 1000)::bigint;
    end if;
    if known.step is not null then
        -- What was due before the step already; there may be a great many of them.
        update changefeed.event e set due_at = e.due_at - known.step
        where e.ctid = any (array(
            select e.ctid from changefeed.event_trigger t
            join changefeed.event e on e.trigger_id = t.trigger_id
                and e.due_at > now_at and e.due_at <= known.step_to + known.step
            where e.locked_by is null
            limit batch
            for update of e skip locked));
        get diagnostics done = row_count;
        if done < batch then
            known.step := null;
        end if;
    end if;
    if known.looked_to is null or known.looked_to < now_at + interval '5 seconds' then
        known.looked_to := now_at + interval '5 seconds';
    end if;
    with ahead as materialized (
        select e.*
        from changefeed.event_trigger t
        cross join lateral (
            select e.ctid as place, e.trigger_id, e.due_at,
                   e.generation = 0 and e.created_at > now_at + interval '5 seconds' as astray
            from changefeed.event e
            where e.trigger_id = t.trigger_id and e.due_at >= known.looked_to
            order by e.due_at, e.change_id
            limit looked
        ) e
    ),
    brought as (
        update changefeed.event e set due_at = now_at
        where e.ctid = any (array(
            select e.ctid from changefeed.event e
            where e.ctid = any (array(select a.place from ahead a where a.astray))
              and e.generation = 0 and e.due_at > now_at
            for update skip locked))
    )
    -- Where the next look begins: behind what this one has reached of every trigger.
    select min(l.due_at) + interval '1 microsecond' into known.looked_to
    from (select max(a.due_at) as due_at from ahead a
          group by a.trigger_id having count(*) = looked) l;
    update changefeed.clock c set latest = now_at, step_to = known.step_to, step = known.step,
                                  looked_to = known.looked_to;
end $$;
