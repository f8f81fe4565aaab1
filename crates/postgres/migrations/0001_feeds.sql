-- changefeed 1: feeds on PostgreSQL 13 and later.
--
-- What users see: feed, shard, change, consumer, the sequence change_id, sweep() and
-- sweep_loop(). Everything else is how it works and may change.
--
-- How a change gets its number:
--   1. A writer inserts (feed_id, shard, change_id) into the view `change`. The row lands in an
--      inbox segment together with the writer's transaction id. Nothing is locked, nobody is
--      notified: writers pay one heap insert and one index insert.
--   2. A sweep locks the shard's definition, takes a snapshot, and copies the rows that are
--      committed in this snapshot, but were not in the previous one, to `numbered`, in order of
--      change_id. The snapshot goes to `progress`; numbers and snapshot commit together.
--   3. Inbox rows are never updated or deleted. A segment whose rows all have numbers is
--      truncated. So an old snapshot held by somebody else leaves no dead rows in our way.
--
-- The same reasoning made `progress` append-only: its newest row is found from the end of the
-- index, however many old versions a held snapshot forces the server to keep.

create schema changefeed;

create table changefeed.schema_version (
    version      integer primary key,
    installed_at timestamptz not null default clock_timestamp()
);
insert into changefeed.schema_version (version) values (1);

-- Feeds and shards ------------------------------------------------------------------------------

create table changefeed.feed (
    feed_id smallint primary key,
    name    varchar(100) not null unique check (name ~ '^[a-zA-Z0-9_-]+$'),
    comment text
);

-- Where the rows behind a feed's changes are. `source` is a regclass, so it follows a renamed
-- table.
create table changefeed.feed_source (
    feed_id          smallint primary key references changefeed.feed on delete cascade,
    kind             text not null check (kind in ('captured', 'joined')),
    source           regclass not null,
    change_id_column text,
    shard_by         text,
    shards           smallint not null
);

create table changefeed.shard_definition (
    feed_id       smallint not null references changefeed.feed on delete cascade,
    shard         smallint not null,
    sweep_group   smallint not null default 0,
    longpoll      boolean not null default true,
    -- The number before the first live one; everything up to it is for data older than the feed.
    start         bigint not null default 2000000000000000 check (start >= 0),
    -- The highest number that trimming has removed.
    trimmed_to    bigint not null default 0,
    -- The highest number that backfilling has given.
    backfilled_to bigint,
    primary key (feed_id, shard)
);
create unique index ix_sweep_group on changefeed.shard_definition (sweep_group, feed_id, shard);

-- One row per sweep that found something, thinned to about one a second.
create table changefeed.progress (
    feed_id                     smallint not null,
    shard                       smallint not null,
    last_change_sequence_number bigint not null,
    sweep_id                    bigint not null,
    swept_at                    timestamptz not null default clock_timestamp(),
    -- Every change committed in this snapshot has its number.
    snapshot                    pg_snapshot not null,
    -- A backlog too large for one sweep: of the changes committed in `target`, those up to
    -- `resume_after` have their numbers as well.
    target                      pg_snapshot,
    resume_after                bigint,
    primary key (feed_id, shard, last_change_sequence_number, sweep_id),
    foreign key (feed_id, shard) references changefeed.shard_definition on delete cascade
);

create view changefeed.shard as
select d.feed_id, d.shard, d.sweep_group, d.longpoll,
       p.last_change_sequence_number, p.swept_at as last_sweep_time
from changefeed.shard_definition d
cross join lateral (
    select p.last_change_sequence_number, p.swept_at
    from changefeed.progress p
    where p.feed_id = d.feed_id and p.shard = d.shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1
) p;
alter view changefeed.shard alter column sweep_group set default 0;
alter view changefeed.shard alter column longpoll set default true;
alter view changefeed.shard alter column last_change_sequence_number set default 2000000000000000;

-- Changes ---------------------------------------------------------------------------------------

-- Cache 1: a cache is per session, so a larger one would hand a later writer a smaller id.
create sequence changefeed.change_id as bigint start 1000000000000000 cache 1;

create table changefeed.numbered (
    feed_id                smallint not null,
    shard                  smallint not null,
    change_sequence_number bigint not null,
    change_id              bigint not null,
    primary key (feed_id, shard, change_sequence_number)
);
-- Numbers follow change ids closely, so this finds the number of a change at hardly any cost
-- to the sweep.
create index ix_change_id on changefeed.numbered using brin (change_id) with (autosummarize = on);

-- The segment of a writer is chosen by its transaction id, 8192 transactions at a time, so that
-- writers leave a segment by themselves and nobody has to tell them. See change_insert().
-- Rows that are only ever inserted and then truncated need no vacuum for their sake.
create table changefeed.inbox_0 (
    feed_id   smallint not null,
    shard     smallint not null,
    change_id bigint not null,
    -- The top-level transaction, not xmin, which may be a savepoint's.
    xid       xid8 not null
) with (autovacuum_vacuum_insert_threshold = -1);
create table changefeed.inbox_1 (like changefeed.inbox_0)
    with (autovacuum_vacuum_insert_threshold = -1);
create table changefeed.inbox_2 (like changefeed.inbox_0)
    with (autovacuum_vacuum_insert_threshold = -1);
create table changefeed.inbox_3 (like changefeed.inbox_0)
    with (autovacuum_vacuum_insert_threshold = -1);
create index on changefeed.inbox_0 (feed_id, shard, xid);
create index on changefeed.inbox_1 (feed_id, shard, xid);
create index on changefeed.inbox_2 (feed_id, shard, xid);
create index on changefeed.inbox_3 (feed_id, shard, xid);

create view changefeed.inbox as
select feed_id, shard, change_id, xid from changefeed.inbox_0
union all select feed_id, shard, change_id, xid from changefeed.inbox_1
union all select feed_id, shard, change_id, xid from changefeed.inbox_2
union all select feed_id, shard, change_id, xid from changefeed.inbox_3;

-- Transaction ids mean nothing in another cluster: see restamp().
create table changefeed.cluster (
    singleton         boolean primary key default true check (singleton),
    system_identifier bigint not null
);
insert into changefeed.cluster (system_identifier)
select system_identifier from pg_catalog.pg_control_system();

-- Committed changes that wait for their number.
create view changefeed.pending as
select i.feed_id, i.shard, i.change_id
from changefeed.shard_definition d
cross join lateral (
    select p.snapshot, p.target, p.resume_after
    from changefeed.progress p
    where p.feed_id = d.feed_id and p.shard = d.shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1
) p
join changefeed.inbox i on i.feed_id = d.feed_id and i.shard = d.shard
    and i.xid >= pg_snapshot_xmin(p.snapshot)
where not pg_visible_in_snapshot(i.xid, p.snapshot)
  and not (p.target is not null
           and pg_visible_in_snapshot(i.xid, p.target) and i.change_id <= p.resume_after);

-- A query for `change_sequence_number > cursor` never touches the second half: the planner
-- knows that NULL is not greater than anything.
create view changefeed.change as
select feed_id, shard, change_id, change_sequence_number from changefeed.numbered
union all
select feed_id, shard, change_id, null::bigint from changefeed.pending;

-- Runs with our rights, so that a writer needs no more than INSERT on the view. Every operator
-- and every type is spelt with its schema (a writer's pg_temp would come first) instead of a
-- `set search_path`, which would cost each writer more than the insert itself.
create function changefeed.change_insert() returns trigger
language plpgsql security definer as $$
declare
    writer  pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    segment pg_catalog.int4;
    highest pg_catalog.int8;
    lowest  pg_catalog.int8;
begin
    if new.change_sequence_number is null then
        segment := ((writer::pg_catalog.text::pg_catalog.int8) operator(pg_catalog.>>) 13)
                   operator(pg_catalog.&) 3;
        if segment operator(pg_catalog.=) 0 then
            insert into changefeed.inbox_0 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard;
        elsif segment operator(pg_catalog.=) 1 then
            insert into changefeed.inbox_1 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard;
        elsif segment operator(pg_catalog.=) 2 then
            insert into changefeed.inbox_2 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard;
        else
            insert into changefeed.inbox_3 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard;
        end if;
        if found then
            return new;
        end if;
    else
        select d.start, d.trimmed_to into highest, lowest from changefeed.shard_definition d
        where d.feed_id operator(pg_catalog.=) new.feed_id
          and d.shard operator(pg_catalog.=) new.shard;
        if found then
            if exists (select from changefeed.backfill b
                       where b.feed_id operator(pg_catalog.=) new.feed_id
                         and b.finished_at is null) then
                raise exception 'changefeed: a backfill of feed % is at work', new.feed_id
                    using errcode = 'object_in_use',
                          hint = 'Insert old data before it or after it.';
            end if;
            if new.change_sequence_number operator(pg_catalog.>) highest
               or new.change_sequence_number operator(pg_catalog.<=) lowest then
                raise exception 'changefeed: number % of feed % shard % is not free for old data',
                    new.change_sequence_number, new.feed_id, new.shard
                    using errcode = 'check_violation',
                          hint = pg_catalog.format(
                              'Numbers given by hand must be above %s and at most %s; leave the '
                              'number out for a live change.', lowest, highest);
            end if;
            insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id)
            values (new.feed_id, new.shard, new.change_sequence_number, new.change_id);
            return new;
        end if;
    end if;
    raise exception 'changefeed: feed % has no shard %', new.feed_id, new.shard
        using errcode = 'foreign_key_violation',
              hint = 'Insert the feed into changefeed.feed and the shard into changefeed.shard.';
end $$;

-- With session_replication_role = replica the trigger below does not fire, and a view has no other
-- means: the insert would be accepted and nothing stored. So the default of a column that writers
-- leave out refuses it, by a text that is no number; a function would have to be granted to them.
alter view changefeed.change alter column change_sequence_number set default
    case when pg_catalog.current_setting('session_replication_role')
              operator(pg_catalog.=) 'replica'
         then ('changefeed: this change would be lost; publish it with session_replication_role ='
               ' origin or local, and not '
               operator(pg_catalog.||) pg_catalog.current_setting('session_replication_role')
              )::pg_catalog.int8 end;

create trigger change_insert instead of insert on changefeed.change
for each row execute function changefeed.change_insert();

-- Inserting, changing and removing shards ---------------------------------------------------------

create function changefeed.shard_write() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        insert into changefeed.shard_definition (feed_id, shard, sweep_group, longpoll, start)
        values (new.feed_id, new.shard, coalesce(new.sweep_group, 0), coalesce(new.longpoll, true),
                coalesce(new.last_change_sequence_number, 2000000000000000))
        returning start into new.last_change_sequence_number;
        -- A snapshot from before every transaction. The current one would count this very
        -- transaction as finished, and lose what it may still publish.
        insert into changefeed.progress
            (feed_id, shard, last_change_sequence_number, sweep_id, snapshot)
        values (new.feed_id, new.shard, new.last_change_sequence_number, 0, '1:1:')
        returning swept_at into new.last_sweep_time;
        return new;
    elsif tg_op = 'UPDATE' then
        if (new.feed_id, new.shard, new.last_change_sequence_number)
           is distinct from (old.feed_id, old.shard, old.last_change_sequence_number) then
            raise exception 'changefeed: only sweep_group and longpoll of a shard can be changed'
                using errcode = 'feature_not_supported';
        end if;
        update changefeed.shard_definition d
        set sweep_group = new.sweep_group, longpoll = new.longpoll
        where d.feed_id = old.feed_id and d.shard = old.shard;
        return new;
    else
        if exists (select from changefeed.feed_source f
                   where f.feed_id = old.feed_id and f.kind = 'captured'
                     and old.shard >= 0 and old.shard < f.shards) then
            raise exception 'changefeed: feed % publishes to shard %, so it cannot be removed',
                old.feed_id, old.shard
                using errcode = 'object_in_use',
                      hint = 'Remove the whole feed: delete it from changefeed.feed.';
        end if;
        -- Waits for writers that have seen the shard, so that none of their rows stay behind
        -- for a later shard of the same number.
        lock table changefeed.inbox_0, changefeed.inbox_1, changefeed.inbox_2, changefeed.inbox_3
            in share row exclusive mode;
        delete from changefeed.shard_definition d
        where d.feed_id = old.feed_id and d.shard = old.shard;
        delete from changefeed.inbox_0 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.inbox_1 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.inbox_2 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.inbox_3 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.numbered n where n.feed_id = old.feed_id and n.shard = old.shard;
        return old;
    end if;
end $$;

create trigger shard_write instead of insert or update or delete on changefeed.shard
for each row execute function changefeed.shard_write();

create function changefeed.feed_delete() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set client_min_messages = warning as $$
begin
    -- A trigger that publishes to a feed that is gone would fail the application's writes.
    execute format('drop function if exists changefeed.%I() cascade', 'capture_' || old.feed_id);
    delete from changefeed.feed_source f where f.feed_id = old.feed_id;
    delete from changefeed.shard s where s.feed_id = old.feed_id;
    return old;
end $$;

create trigger feed_delete before delete on changefeed.feed
for each row execute function changefeed.feed_delete();

-- Sweeping --------------------------------------------------------------------------------------

-- Removes what is left of a backlog of numbered rows: truncates the segments in which no shard
-- has anything new. Never waits for a lock, because writers would queue behind the wait.
create function changefeed.tidy() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    segment integer;
    size    bigint;
    current integer := (pg_snapshot_xmax(pg_current_snapshot())::text::bigint >> 13) & 3;
    busy    boolean;
begin
    for segment in 0..3 loop
        size := pg_relation_size(format('changefeed.inbox_%s', segment)::regclass);
        -- The segment that writers use now is left alone unless it has grown out of proportion.
        continue when size < case when segment = current then 268435456 else 16777216 end;
        begin
            execute format('lock table changefeed.inbox_%s in access exclusive mode nowait', segment);
            -- With the lock held, every row is either committed and visible here, or dead.
            execute format($q$
                select exists (
                    select from changefeed.shard_definition d
                    cross join lateral (
                        select p.snapshot, p.target
                        from changefeed.progress p
                        where p.feed_id = d.feed_id and p.shard = d.shard
                        order by p.last_change_sequence_number desc, p.sweep_id desc
                        limit 1
                    ) p
                    where p.target is not null
                       or exists (select from changefeed.inbox_%1$s i
                                  where i.feed_id = d.feed_id and i.shard = d.shard
                                    and i.xid >= pg_snapshot_xmax(p.snapshot))
                       or exists (select from changefeed.inbox_%1$s i
                                  where i.feed_id = d.feed_id and i.shard = d.shard
                                    and i.xid = any (array(select pg_snapshot_xip(p.snapshot))))
                )$q$, segment) into busy;
            if not busy then
                execute format('truncate changefeed.inbox_%s', segment);
            end if;
        exception when lock_not_available then
            null;
        end;
    end loop;
end $$;

-- Removes the inbox rows of a shard that have their numbers. Nobody needs them; they go when their
-- segment is truncated, or here, before the changes they became are trimmed: restamp() must not
-- take them for new ones.
create function changefeed.forget_numbered(of_feed smallint, of_shard smallint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off as $$
declare
    numbered constant pg_snapshot := (
        select p.snapshot from changefeed.progress p
        where p.feed_id = of_feed and p.shard = of_shard
        order by p.last_change_sequence_number desc, p.sweep_id desc
        limit 1);
begin
    for segment in 0..3 loop
        execute format('delete from changefeed.inbox_%s i where i.feed_id = $1 and i.shard = $2 '
                       'and pg_visible_in_snapshot(i.xid, $3)', segment)
        using of_feed, of_shard, numbered;
    end loop;
end $$;

-- After a dump was restored into another cluster, the transaction ids in the inbox belong to a
-- past life and cannot be compared with new ones. Every row that has no number yet is written
-- again under the current transaction, and counting starts from here.
create function changefeed.restamp() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    lock table changefeed.inbox_0, changefeed.inbox_1, changefeed.inbox_2, changefeed.inbox_3
        in access exclusive mode;
    perform from changefeed.shard_definition for update;
    create temporary table changefeed_restamp on commit drop as
    select i.feed_id, i.shard, i.change_id
    from changefeed.inbox i
    join changefeed.shard_definition d on d.feed_id = i.feed_id and d.shard = i.shard
    cross join lateral (
        select p.snapshot
        from changefeed.progress p
        where p.feed_id = d.feed_id and p.shard = d.shard
        order by p.last_change_sequence_number desc, p.sweep_id desc
        limit 1
    ) p
    where not exists (select from changefeed.numbered n
                      where n.feed_id = i.feed_id and n.shard = i.shard
                        and n.change_id = i.change_id)
      -- Numbered and trimmed in the past life; an id that this cluster has not reached yet can
      -- only be from there.
      and not (i.xid >= pg_snapshot_xmax(pg_current_snapshot())
               and pg_visible_in_snapshot(i.xid, p.snapshot));
    truncate changefeed.inbox_0, changefeed.inbox_1, changefeed.inbox_2, changefeed.inbox_3;
    insert into changefeed.progress
        (feed_id, shard, last_change_sequence_number, sweep_id, snapshot)
    select distinct on (p.feed_id, p.shard)
           p.feed_id, p.shard, p.last_change_sequence_number, p.sweep_id + 1, '1:1:'::pg_snapshot
    from changefeed.progress p
    order by p.feed_id, p.shard, p.last_change_sequence_number desc, p.sweep_id desc;
    insert into changefeed.change (feed_id, shard, change_id)
    select r.feed_id, r.shard, r.change_id from pg_temp.changefeed_restamp r
    order by r.change_id;
    drop table pg_temp.changefeed_restamp;
    update changefeed.cluster
    set system_identifier = (select s.system_identifier from pg_control_system() s);
end $$;

-- Numbers what is committed in a group, once. Any number of sweeps may run at the same time:
-- each locks the shards it works on and leaves those alone that another one has locked.
create function changefeed.sweep(sweep_group integer default 0)
returns table (feed_id smallint, shard smallint, change_count bigint, lag_milliseconds bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Plans are made once per session, perhaps while the inbox is empty: they must not scan it whole.
-- Made for each call anew they would cost more than an idle sweep itself.
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- More than this is left for the next sweep, so that no shard waits long for another.
    batch   constant bigint := 100000;
    swept   constant integer := coalesce(sweep.sweep_group, 0);
    memory  constant text := 'changefeed.swept_' || replace(swept::text, '-', '_');
    began   timestamptz := clock_timestamp();
    earlier timestamptz := nullif(current_setting(memory, true), '')::timestamptz;
    s       record;
    prev    changefeed.progress;
    open    xid8[];
    me      xid8;
    now_at  pg_snapshot;
    upto    pg_snapshot;
    done    bigint;
    total   bigint := 0;
    mark    timestamptz;
    resume  bigint;
    -- Whether shards without news get the newer snapshot as well.
    thorough boolean := false;
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

    loop
        for s in
            select d.feed_id, d.shard, d.longpoll
            from changefeed.shard_definition d
            cross join lateral (
                select p.snapshot, p.target
                from changefeed.progress p
                where p.feed_id = d.feed_id and p.shard = d.shard
                order by p.last_change_sequence_number desc, p.sweep_id desc
                limit 1
            ) p
            where d.sweep_group = swept
              and (thorough
                   or p.target is not null
                   or exists (select from changefeed.inbox i
                              where i.feed_id = d.feed_id and i.shard = d.shard
                                and i.xid >= pg_snapshot_xmax(p.snapshot))
                   or exists (select from pg_snapshot_xip(p.snapshot) x
                              cross join lateral (
                                  select from changefeed.inbox i
                                  where i.feed_id = d.feed_id and i.shard = d.shard and i.xid = x
                                  offset 0) i
                              where pg_visible_in_snapshot(x, pg_current_snapshot())))
            order by d.feed_id, d.shard
            for no key update of d skip locked
        loop
            -- Only now, with the lock held, in a statement of its own: a snapshot from before the
            -- lock would show an old end and number changes twice.
            select p.* into strict prev
            from changefeed.progress p
            where p.feed_id = s.feed_id and p.shard = s.shard
            order by p.last_change_sequence_number desc, p.sweep_id desc
            limit 1;

            -- Our own transaction is not finished, whatever its snapshot says about itself: the
            -- caller may have published in it, or may still.
            me := pg_current_xact_id();
            now_at := pg_current_snapshot();
            if me < pg_snapshot_xmax(now_at) then
                now_at := format('%s:%s:%s',
                    case when me < pg_snapshot_xmin(now_at) then me else pg_snapshot_xmin(now_at) end,
                    pg_snapshot_xmax(now_at),
                    (select string_agg(x::text, ',' order by x)
                     from (select pg_snapshot_xip(now_at) union select me) o(x)))::pg_snapshot;
            end if;
            upto := coalesce(prev.target, now_at);
            -- Writers that were at work in the previous snapshot and have finished since.
            open := array(select x from pg_snapshot_xip(prev.snapshot) x
                          where pg_visible_in_snapshot(x, upto));

            insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id)
            select s.feed_id, s.shard,
                   prev.last_change_sequence_number + row_number() over (order by piece.change_id),
                   piece.change_id
            from (
                select w.change_id
                from (
                    select i.change_id from changefeed.inbox i
                    where i.feed_id = s.feed_id and i.shard = s.shard
                      and i.xid >= pg_snapshot_xmax(prev.snapshot)
                      and pg_visible_in_snapshot(i.xid, upto)
                    union all
                    -- One by one, so that the plan can only look them up in the index; `= any`
                    -- became a filter over the whole shard in plans made for an empty inbox.
                    select i.change_id from unnest(open) o(xid)
                    cross join lateral (
                        select i.change_id from changefeed.inbox i
                        where i.feed_id = s.feed_id and i.shard = s.shard and i.xid = o.xid
                        offset 0) i
                ) w
                where prev.target is null or w.change_id > prev.resume_after
                order by w.change_id
                -- With ties, so that an id that was used twice is not cut in half and lost.
                fetch first batch rows with ties
            ) piece;
            get diagnostics done = row_count;
            continue when done = 0 and prev.target is null and not thorough;

            resume := null;
            if done >= batch then
                select n.change_id into strict resume
                from changefeed.numbered n
                where n.feed_id = s.feed_id and n.shard = s.shard
                  and n.change_sequence_number = prev.last_change_sequence_number + done;
            end if;
            insert into changefeed.progress
                (feed_id, shard, last_change_sequence_number, sweep_id, swept_at, snapshot, target,
                 resume_after)
            values (s.feed_id, s.shard, prev.last_change_sequence_number + done, prev.sweep_id + 1,
                    case when done > 0 then clock_timestamp() else prev.swept_at end,
                    case when resume is null then upto else prev.snapshot end,
                    case when resume is null then null else upto end,
                    resume);
            -- Keep about one row a second, for the age of a number.
            select p.swept_at into mark
            from changefeed.progress p
            where p.feed_id = s.feed_id and p.shard = s.shard
            order by p.last_change_sequence_number desc, p.sweep_id desc
            offset 2 limit 1;
            if done = 0 or mark > clock_timestamp() - interval '1 second' then
                delete from changefeed.progress p
                where p.feed_id = s.feed_id and p.shard = s.shard
                  and p.last_change_sequence_number = prev.last_change_sequence_number
                  and p.sweep_id = prev.sweep_id;
            end if;

            if done > 0 then
                if s.longpoll then
                    perform pg_notify('changefeed', format('%s/%s/%s', s.feed_id, s.shard,
                                                           prev.last_change_sequence_number + done));
                end if;
                total := total + done;
                feed_id := s.feed_id;
                shard := s.shard;
                change_count := done;
                -- A ceiling: the time since the shard was last swept, or last found empty by this
                -- session.
                lag_milliseconds := ceil(extract(epoch from clock_timestamp()
                    - case when prev.target is null then greatest(prev.swept_at, earlier)
                           else prev.swept_at end) * 1000);
                return next;
            end if;
        end loop;
        -- Looking took long: somebody is writing a great many rows that are not committed yet,
        -- and every sweep would pass over them again. Take the newer snapshot for every shard,
        -- found something or not: it counts that writer as one to be waited for by name.
        exit when thorough or clock_timestamp() < began + interval '10 milliseconds';
        thorough := true;
    end loop;
    perform set_config(memory, began::text, false);
    if total > 0 then
        perform changefeed.tidy();
    end if;
end $$;

-- Leases ----------------------------------------------------------------------------------------

create table changefeed.lease (
    name       text primary key,
    owner      text not null,
    generation bigint not null,
    expires_at timestamptz not null
);

-- Takes a lease that is free or expired, or renews it for the same owner; null while somebody
-- else holds it. The clock is the database's.
create function changefeed.take_lease(lease_name text, lease_owner text, ttl_milliseconds integer)
returns bigint
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into changefeed.lease as l (name, owner, generation, expires_at)
    values (lease_name, lease_owner, 1,
            clock_timestamp() + ttl_milliseconds * interval '1 millisecond')
    on conflict (name) do update
    set owner = excluded.owner,
        generation = case when l.owner = excluded.owner and l.expires_at > clock_timestamp()
                          then l.generation else l.generation + 1 end,
        expires_at = excluded.expires_at
    where l.owner = excluded.owner or l.expires_at <= clock_timestamp()
    returning generation;
$$;

-- Gives a lease back. The row stays: its generation must go on growing.
create function changefeed.free_lease(lease_name text, lease_owner text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update changefeed.lease set expires_at = clock_timestamp()
    where name = lease_name and owner = lease_owner;
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
    lease     constant text := 'sweep/' || sweep_group;
    holder    constant text := format('sweep_loop/%s/%s', pg_catalog.pg_backend_pid(),
                                      pg_catalog.clock_timestamp());
    -- Until when to wait for the lease, and once it was had, until when to work.
    deadline  timestamptz := pg_catalog.clock_timestamp()
                             + coalesce(wait_milliseconds, 30000) * interval '1 millisecond';
    found_now bigint;
    lag_now   bigint;
begin
    if sweep_group is null or least(wait_milliseconds, duration_milliseconds, sleep_milliseconds) < 0
    then
        raise exception 'changefeed: sweep_loop needs a sweep group, and no time may be negative'
            using errcode = 'invalid_parameter_value';
    end if;
    change_count := 0;
    max_lag_milliseconds := 0;
    iterations := 0;
    loop
        if changefeed.take_lease(lease, holder, ttl) is null then
            commit;
            if pg_catalog.clock_timestamp() >= deadline then
                return;
            end if;
            -- Short naps instead of one long wait for a lock, which would hold back vacuum.
            perform pg_catalog.pg_sleep(least(0.2, greatest(0.001,
                extract(epoch from deadline - pg_catalog.clock_timestamp()))));
            continue;
        end if;
        commit;
        if iterations = 0 then
            deadline := pg_catalog.clock_timestamp()
                        + coalesce(duration_milliseconds, 50000) * interval '1 millisecond';
        end if;
        select coalesce(sum(s.change_count), 0), coalesce(max(s.lag_milliseconds), 0)
        into found_now, lag_now
        from changefeed.sweep(sweep_group) s;
        commit;
        change_count := change_count + found_now;
        max_lag_milliseconds := greatest(max_lag_milliseconds, lag_now);
        iterations := iterations + 1;
        exit when pg_catalog.clock_timestamp() >= deadline;
        perform pg_catalog.pg_sleep(coalesce(sleep_milliseconds, 20) / 1000.0);
    end loop;
    perform changefeed.free_lease(lease, holder);
    commit;
end $$;

-- Rows behind captured changes ------------------------------------------------------------------

-- The primary key of the row that a captured change is about: a JSON array of texts, in key
-- order. Text is the one form that every type can be written to and read back from.
create table changefeed.change_row (
    change_id bigint primary key,
    key       jsonb
);

-- The shard of a value; documented in docs/feeds.md, the same on every database.
-- It is inlined into triggers that run with our rights under the writer's search path, so every
-- operator and type is spelt with its schema.
create function changefeed.shard_of(value bigint, shards integer) returns smallint
language sql immutable parallel safe as $$
    select coalesce(
        ((value operator(pg_catalog.%) shards::pg_catalog.int8)
         operator(pg_catalog.+) shards::pg_catalog.int8)
        operator(pg_catalog.%) shards::pg_catalog.int8, 0::pg_catalog.int8)::pg_catalog.int2
$$;

create function changefeed.shard_of(value text, shards integer) returns smallint
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    bytes bytea := convert_to(value, 'UTF8');
    total bigint := 0;
begin
    if value is null then
        return 0;
    end if;
    for i in 1 .. least(length(bytes), 255) loop
        total := total + get_byte(bytes, i - 1)::bigint * ((i * i * 7919) % 65521);
    end loop;
    return (((total * 40503) % 4294967296) >> 12) % shards;
end $$;

-- Enters a change of a captured table. An insert into the view would look for the shard, and a
-- writer's snapshot may be older than the feed: the write would fail. The trigger is there no longer
-- than the feed and its shards, so nothing has to be looked for. Like change_insert(), it has no
-- `set search_path`. True, so that it can be a condition.
create function changefeed.enter_change(feed_id smallint, shard smallint, change_id bigint)
returns boolean
language plpgsql as $$
declare
    writer  pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    segment pg_catalog.int4 := ((writer::pg_catalog.text::pg_catalog.int8)
                                operator(pg_catalog.>>) 13) operator(pg_catalog.&) 3;
begin
    if segment operator(pg_catalog.=) 0 then
        insert into changefeed.inbox_0 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    elsif segment operator(pg_catalog.=) 1 then
        insert into changefeed.inbox_1 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    elsif segment operator(pg_catalog.=) 2 then
        insert into changefeed.inbox_2 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    else
        insert into changefeed.inbox_3 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    end if;
    return true;
end $$;

create function changefeed.publish_row(feed_id smallint, shard smallint, key jsonb) returns void
language plpgsql as $$
declare
    id pg_catalog.int8 := pg_catalog.nextval('changefeed.change_id');
begin
    insert into changefeed.change_row (change_id, key) values (id, publish_row.key);
    perform changefeed.enter_change(publish_row.feed_id, publish_row.shard, id);
end $$;

-- Tables as they are now --------------------------------------------------------------------------
--
-- A query of the catalogue sees it as the caller's snapshot does: under REPEATABLE READ that is how
-- a table was before somebody altered it, while the rows that a trigger is given are of today. A
-- trigger that believed such a query would treat a value of somebody's own type as one of the
-- server's, and run their functions with our rights; or it would not find a column that was
-- renamed. So nothing here depends on a query of the catalogue where it matters: the names are had
-- by functions that look into the server's caches, which are always current, and the types from the
-- parser. What a type is may come from a query, because it does not change; one that is too new to be seen
-- is somebody's own.

-- A table in this cluster, as no other cluster has it.
create function changefeed.place_of(source oid) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select (select s.system_identifier from pg_control_system() s) || '/' || source
$$;

-- The columns, with their numbers and types.
create function changefeed.columns_now(
    source oid, out place smallint, out name text, out type oid)
returns setof record
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    numbers smallint[] := '{}';
    names   text[] := '{}';
    types   oid[];
    number  smallint := 0;
begin
    loop
        number := number + 1;
        begin
            name := (pg_identify_object_as_address('pg_class'::regclass, source, number))
                    .object_names[3];
        exception when others then
            -- PostgreSQL 13 says so when there is no such column.
            exit;
        end;
        exit when name is null;
        -- Null for what was dropped. Asked about everybody, because one who may use the whole table
        -- is not told.
        continue when has_column_privilege('public', source, number, 'references') is null;
        numbers := numbers || number;
        names := names || name;
    end loop;
    execute format('select array[%s]::oid[]', (
        select string_agg(format('pg_typeof((null::%s).%I)', source::regclass, n), ', ' order by o)
        from unnest(names) with ordinality u(n, o))) into types;
    return query select u.p, u.n, u.t from unnest(numbers, names, types) u(p, n, t);
end $$;

-- The name that a column has now which had this name and number in a table of this place; null if
-- it was dropped. A dump that is restored numbers columns anew, so elsewhere the name counts.
create function changefeed.column_now(of_place text, number smallint, name text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    source oid := split_part(of_place, '/', 2)::oid;
begin
    if of_place is distinct from changefeed.place_of(source) or number is null then
        return name;
    end if;
    if has_column_privilege('public', source, number, 'references') is null then
        return null;
    end if;
    return (pg_identify_object_as_address('pg_class'::regclass, source, number)).object_names[3];
end $$;

-- The columns of the primary key, in its order; none if there is none.
create function changefeed.key_now(source regclass) returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    key   oid;
    names text[] := '{}';
begin
    -- By default the primary key is what a replica knows a row by.
    if exists (select from pg_class c where c.oid = source and c.relreplident = 'd') then
        key := pg_get_replica_identity_index(source);
    end if;
    if key is null then
        select x.indexrelid into key from pg_index x where x.indrelid = source and x.indisprimary;
    end if;
    -- What an index merely includes is not in order.
    while pg_index_column_has_property(key, cardinality(names) + 1, 'orderable') loop
        names := names || (parse_ident(pg_get_indexdef(key, cardinality(names) + 1, false)))[1];
    end loop;
    return names;
end $$;

-- The query that makes the key of a row $1: the slow way, for a table whose key columns are not what
-- they were when its trigger was made. `format` calls a type's own output function and never a cast,
-- which may be anybody's. Null if there is no key.
create function changefeed.key_query(source regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select format('select pg_catalog.jsonb_build_array(%s)',
        string_agg(format('pg_catalog.format(''%%s'', ($1).%I)', k.name), ', ' order by k.place))
    from unnest(changefeed.key_now(source)) with ordinality k(name, place)
    having count(*) > 0
$$;

-- The type beneath a domain.
create function changefeed.base_type(type oid) returns oid
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    beneath oid := type;
    kind    "char";
    next    oid;
begin
    loop
        select t.typtype, t.typbasetype into kind, next from pg_type t where t.oid = beneath;
        exit when kind is distinct from 'd';
        beneath := next;
    end loop;
    return beneath;
end $$;

-- The shard of a row $1 by one of its columns, as an expression.
create function changefeed.shard_expression(row_name text, column_name text, type oid, shards integer)
returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select case
        when column_name is null then '0::pg_catalog.int2'
        when changefeed.base_type(type) in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) then
            format('changefeed.shard_of(%s.%I::pg_catalog.int8, %s)', row_name, column_name, shards)
        else format('changefeed.shard_of(pg_catalog.format(''%%s'', %s.%I), %s)',
                    row_name, column_name, shards)
    end
$$;

-- Key and shard of a row of a captured table that was altered: slower than the trigger itself, but
-- nothing is lost. It never fails: a row whose key is gone has an empty one. The settings are those
-- that shape texts.
create function changefeed.row_place(
    source regclass, changed anyelement, of_place text, shard_number smallint, shard_name text,
    shards integer, out key jsonb, out shard smallint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set lc_monetary = 'C' as $$
declare
    column_name text;
    type        oid;
begin
    begin
        execute changefeed.key_query(source) into key using changed;
    exception when others then
        raise warning 'changefeed: a change of % has no key: %', source, sqlerrm;
    end;
    begin
        column_name := changefeed.column_now(of_place, shard_number, shard_name);
        if column_name is not null then
            execute format('select pg_typeof(($1).%I)::oid', column_name) into type using changed;
            execute 'select ' || changefeed.shard_expression('($1)', column_name, type, shards)
            into shard using changed;
        end if;
    exception when others then
        raise warning 'changefeed: a change of % goes to shard 0: %', source, sqlerrm;
    end;
    key := coalesce(key, '[]');
    shard := coalesce(shard, 0);
end $$;

-- Consumers and backfills -----------------------------------------------------------------------

create table changefeed.consumer (
    name       varchar(100) not null check (name ~ '^[a-zA-Z0-9_-]+$'),
    feed_id    smallint not null,
    shard      smallint not null,
    -- Text, because other kinds of feeds have other kinds of cursors.
    cursor     text not null check (cursor ~ '^[0-9]{1,18}$'),
    updated_at timestamptz not null default clock_timestamp(),
    primary key (name, feed_id, shard),
    foreign key (feed_id, shard) references changefeed.shard_definition on delete cascade
);

create function changefeed.consumer_touch() returns trigger
language plpgsql as $$
begin
    new.updated_at := pg_catalog.clock_timestamp();
    return new;
end $$;

create trigger consumer_touch before update on changefeed.consumer
for each row execute function changefeed.consumer_touch();

create table changefeed.backfill (
    feed_id     smallint primary key references changefeed.feed on delete cascade,
    -- The primary key of the last row done, as a JSON array.
    last_key    jsonb,
    done        bigint not null default 0,
    total       bigint not null,
    finished_at timestamptz
);

-- Nothing of this is for everybody; `docs/postgres.md` has the grants for writers, readers and
-- sweepers.
revoke all on all functions in schema changefeed from public;
revoke all on all procedures in schema changefeed from public;
