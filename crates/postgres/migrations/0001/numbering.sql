-- Sweeping --------------------------------------------------------------------------------------

-- The transaction ids that are finished in `upto`, but were not in `since`, as ranges in ascending
-- order. Ids that are still at work are in none of them, so that nobody has to pass over the rows
-- of a large transaction that has not committed yet.
create function changefeed.finished_between(
    since pg_snapshot, upto pg_snapshot, out lows xid8[], out highs xid8[])
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    base  constant bigint := pg_snapshot_xmax(since)::text::bigint;
    bound constant bigint := pg_snapshot_xmax(upto)::text::bigint;
begin
    select array_agg(r.low::text::xid8 order by r.low), array_agg(r.high::text::xid8 order by r.low)
    into lows, highs
    from (
        select x::text::bigint as low, x::text::bigint as high from pg_snapshot_xip(since) x
        where pg_visible_in_snapshot(x, upto)
        union all
        -- What lies between those that are still at work.
        select coalesce(lag(w.x) over (order by w.x) + 1, base), w.x - 1
        from (
            select x::text::bigint as x from pg_snapshot_xip(upto) x where x::text::bigint >= base
            union all select bound
        ) w
    ) r
    where r.low <= r.high;
end $$;

-- The snapshot in which everything before `bound` is finished except for `working`.
create function changefeed.snapshot_of(bound xid8, working xid8[]) returns pg_snapshot
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    return (select format('%s:%s:%s', coalesce((array_agg(w.x order by w.x))[1], bound), bound,
                          string_agg(w.x::text, ',' order by w.x))
            from (select distinct x from unnest(working) x where x < bound) w)::pg_snapshot;
end $$;

-- The snapshot of a statement, with our own transaction among those that are at work, whatever its
-- snapshot says about itself: the caller may have published in it, or may still.
create function changefeed.without_us(seen pg_snapshot) returns pg_snapshot
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if pg_current_xact_id_if_assigned() < pg_snapshot_xmax(seen) then
        return changefeed.snapshot_of(pg_snapshot_xmax(seen),
            array(select pg_snapshot_xip(seen)) || pg_current_xact_id_if_assigned());
    end if;
    return seen;
end $$;

-- The oldest transaction that some snapshot may still count as unfinished: every snapshot shows what
-- was committed before it. Snapshots belong to sessions of this database (one that was exported, to
-- its exporter as well) and to standbys that tell of theirs, themselves or through their slots.
-- Prepared transactions have none. The `catalog_xmin` of a slot is about system tables only. Null
-- where a DBA has taken away what everybody may see by default.
create function changefeed.oldest_snapshot() returns xid8
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    latest bigint;
    oldest bigint;
begin
    -- Otherwise one transaction always sees the sessions of its first look.
    perform pg_stat_clear_snapshot();
    latest := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    select min(case when s.age > 2147483648 then latest else latest - s.age end) into oldest
    from (
        -- How many ids ago, by the 32 bits that are shown; one that began since is shown as ahead.
        select (latest % 4294967296 - h.xmin::text::bigint + 4294967296) % 4294967296 as age
        from (
            select a.backend_xmin as xmin from pg_stat_activity a
            where coalesce(a.datname, current_database()) = current_database()
              and a.backend_type is distinct from 'autovacuum worker'
            union all
            select r.xmin from pg_replication_slots r
        ) h
        where h.xmin is not null
    ) s;
    return coalesce(oldest, latest)::text::xid8;
exception when insufficient_privilege then
    return null;
end $$;

-- Truncates the segments in which no shard has anything new. Truncating is not undone for those who
-- look with an older snapshot, such as a dump that has not locked the segment yet: they would find
-- a row neither there nor numbered. So a segment is first remembered as drained, and truncated when
-- every snapshot is so new that it shows its numbers. Never waits for a lock, because writers would
-- queue behind the wait.
create function changefeed.tidy() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    -- Whether a segment has rows that the snapshot $1 did not show; $2 is our own transaction,
    -- which may be beyond the end of its own snapshots.
    newer   constant text :=
        'select exists (select from changefeed.finished_between($1, changefeed.snapshot_of( '
        'greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, $2 + 1)::text::xid8, '
        'array(select pg_snapshot_xip(pg_current_snapshot())))) f '
        'cross join lateral unnest(f.lows, f.highs) r(low, high) cross join lateral '
        '(select from changefeed.inbox_%s i where i.xid::text::bigint between r.low::text::bigint '
        'and r.high::text::bigint limit 1) i)';
    me      constant bigint := pg_current_xact_id()::text::bigint;
    current constant integer := (pg_snapshot_xmax(pg_current_snapshot())::text::bigint >> 13) & 3;
    size    bigint;
    known   changefeed.inbox_segment;
    seen    pg_snapshot;
    busy    boolean;
begin
    for n in 0..3 loop
        size := pg_relation_size(format('changefeed.inbox_%s', n)::regclass);
        -- The segment that writers use now is left alone unless it has grown out of proportion.
        continue when size < case when n = current then 268435456 else 16777216 end;
        select s.* into strict known from changefeed.inbox_segment s where s.segment = n;
        busy := known.drained is null;
        if not busy then
            execute format(newer, n) into busy using known.drained, me;
        end if;
        if busy then
            execute format($q$
                select pg_current_snapshot(), exists (
                    select from changefeed.shard_definition d
                    cross join lateral (
                        select p.snapshot
                        from changefeed.progress p
                        where p.feed_id = d.feed_id and p.shard = d.shard
                        order by p.last_change_sequence_number desc, p.sweep_id desc
                        limit 1
                    ) p
                    where exists (select from changefeed.inbox_%1$s i
                                  where i.feed_id = d.feed_id and i.shard = d.shard
                                    and i.xid >= pg_snapshot_xmax(p.snapshot))
                       or exists (select from pg_snapshot_xip(p.snapshot) x
                                  cross join lateral (
                                      select from changefeed.inbox_%1$s i
                                      where i.feed_id = d.feed_id and i.shard = d.shard
                                        and i.xid = x
                                      offset 0) i)
                )$q$, n) into seen, busy;
            if not busy then
                -- The numbers may be our own, which nobody sees before we have committed.
                begin
                    perform from changefeed.inbox_segment s where s.segment = n for update nowait;
                    update changefeed.inbox_segment s
                    set drained = seen,
                        safe_at = greatest(pg_snapshot_xmax(seen)::text::bigint, me + 1)::text::xid8
                    where s.segment = n;
                exception when lock_not_available then
                    null;
                end;
            end if;
            continue;
        end if;
        continue when not coalesce(changefeed.oldest_snapshot() >= known.safe_at, false);
        begin
            execute format('lock table changefeed.inbox_%s in access exclusive mode nowait', n);
            -- With the lock held, every row is either committed and visible here, or dead.
            execute format(newer, n) into busy using known.drained, me;
            if not busy then
                execute format('truncate changefeed.inbox_%s', n);
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
    at changefeed.progress;
begin
    select p.* into strict at from changefeed.progress p
    where p.feed_id = of_feed and p.shard = of_shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1;
    for segment in 0..3 loop
        execute format('delete from changefeed.inbox_%s i where i.feed_id = $1 and i.shard = $2 '
                       'and (pg_visible_in_snapshot(i.xid, $3) or i.xid = $4 and i.change_id <= $5)',
                       segment)
        using of_feed, of_shard, at.snapshot, at.resume_xid, at.resume_after;
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
    -- Not truncated: a dump whose snapshot is older would have them neither here nor numbered.
    delete from changefeed.inbox_0;
    delete from changefeed.inbox_1;
    delete from changefeed.inbox_2;
    delete from changefeed.inbox_3;
    update changefeed.inbox_segment set drained = null, safe_at = null;
    insert into changefeed.progress
        (feed_id, shard, last_change_sequence_number, sweep_id, snapshot)
    select distinct on (p.feed_id, p.shard)
           p.feed_id, p.shard, p.last_change_sequence_number, p.sweep_id + 1, '1:1:'::pg_snapshot
    from changefeed.progress p
    order by p.feed_id, p.shard, p.last_change_sequence_number desc, p.sweep_id desc;
    -- Not through the view, which refuses what is put into a closed shard: these were there before it was closed.
    perform changefeed.enter_change(r.feed_id, r.shard, r.change_id)
    from (select r.* from pg_temp.changefeed_restamp r order by r.change_id) r;
    drop table pg_temp.changefeed_restamp;
    update changefeed.cluster
    set system_identifier = (select s.system_identifier from pg_control_system() s);
end $$;

-- Numbers the news of one shard, in pieces that double, until the time has come or it has numbered
-- so many. Null when somebody else has locked the shard, or it does not exist in this group.
-- Called by sweep() only, under its settings.
create function changefeed.number_shard(
    of_feed smallint, of_shard smallint, of_group integer, since timestamptz, until timestamptz,
    most bigint, out changes bigint, out unfinished boolean, out lag_milliseconds bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    longpoll boolean;
    prev     changefeed.progress;
    next     changefeed.progress;
    now_at   pg_snapshot;
    upto     pg_snapshot;
    lows     xid8[];
    highs    xid8[];
    cut      xid8;
    piece    bigint := 1000;
    done     bigint;
    mark     timestamptz;
begin
    select d.longpoll into longpoll from changefeed.shard_definition d
    where d.feed_id = of_feed and d.shard = of_shard and d.sweep_group = of_group
    for no key update skip locked;
    if not found then
        unfinished := exists (select from changefeed.shard_definition d
                              where d.feed_id = of_feed and d.shard = of_shard
                                and d.sweep_group = of_group);
        return;
    end if;
    -- Only now, with the lock held, in a statement of its own: a snapshot from before the lock
    -- would show an old end and number changes twice.
    select p.* into strict prev
    from changefeed.progress p
    where p.feed_id = of_feed and p.shard = of_shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1;
    perform pg_current_xact_id();
    now_at := changefeed.without_us(pg_current_snapshot());
    next := prev;
    changes := 0;
    unfinished := true;
    while unfinished and (changes = 0 or changes < most and clock_timestamp() < until) loop
        if next.resume_xid is null then
            -- A piece is everything up to some transaction: who committed before another began has
            -- the lower id, so that order is kept.
            upto := now_at;
            select f.lows, f.highs into lows, highs
            from changefeed.finished_between(next.snapshot, upto) f;
            if lows is null then
                unfinished := false;
                exit;
            end if;
            select n.xid into cut
            from unnest(lows, highs) r(low, high)
            cross join lateral (select i.xid from changefeed.inbox i
                                where i.feed_id = of_feed and i.shard = of_shard
                                  and i.xid >= r.low and i.xid <= r.high
                                order by i.xid
                                offset 0) n
            offset piece limit 1;
            if cut is not null then
                -- What is finished before it, in addition to what has its numbers already.
                upto := changefeed.snapshot_of(
                    case when cut < pg_snapshot_xmax(next.snapshot)
                         then pg_snapshot_xmax(next.snapshot) else cut end,
                    array(select pg_snapshot_xip(now_at)) ||
                    array(select x from pg_snapshot_xip(next.snapshot) x where x >= cut));
                select f.lows, f.highs into lows, highs
                from changefeed.finished_between(next.snapshot, upto) f;
            end if;
            insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id)
            select of_feed, of_shard,
                   next.last_change_sequence_number + row_number() over (order by n.change_id),
                   n.change_id
            -- Range by range, so that the plan can only look them up in the index; a list became a
            -- filter over the whole shard in plans made for an empty inbox.
            from unnest(lows, highs) r(low, high)
            cross join lateral (select i.change_id from changefeed.inbox i
                                where i.feed_id = of_feed and i.shard = of_shard
                                  and i.xid >= r.low and i.xid <= r.high
                                offset 0) n;
            get diagnostics done = row_count;
            next.snapshot := upto;
            unfinished := cut is not null;
            if unfinished and done = 0 then
                -- This transaction alone is more than a piece.
                next.resume_xid := cut;
                next.resume_after := -9223372036854775808;
                continue;
            end if;
        else
            insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id)
            select of_feed, of_shard,
                   next.last_change_sequence_number + row_number() over (order by n.change_id),
                   n.change_id
            from (select i.change_id from changefeed.inbox i
                  where i.feed_id = of_feed and i.shard = of_shard and i.xid = next.resume_xid
                    and i.change_id > next.resume_after
                  order by i.change_id
                  -- With ties, so that an id that was used twice is not cut in half and lost.
                  fetch first piece rows with ties) n;
            get diagnostics done = row_count;
            if done >= piece then
                select n.change_id into strict next.resume_after
                from changefeed.numbered n
                where n.feed_id = of_feed and n.shard = of_shard
                  and n.change_sequence_number = next.last_change_sequence_number + done;
            else
                -- It is the first beyond the snapshot, or one that was at work in it.
                next.snapshot := changefeed.snapshot_of(
                    case when next.resume_xid < pg_snapshot_xmax(next.snapshot)
                         then pg_snapshot_xmax(next.snapshot)
                         else (next.resume_xid::text::bigint + 1)::text::xid8 end,
                    array(select x from pg_snapshot_xip(next.snapshot) x
                          where x <> next.resume_xid));
                next.resume_xid := null;
                next.resume_after := null;
            end if;
        end if;
        next.last_change_sequence_number := next.last_change_sequence_number + done;
        changes := changes + done;
        piece := least(piece * 2, 100000);
    end loop;
    -- Nothing new: nothing is written. The older snapshot does as well.
    if changes = 0 and prev.resume_xid is null then
        return;
    end if;

    insert into changefeed.progress
        (feed_id, shard, last_change_sequence_number, sweep_id, swept_at, snapshot, resume_xid,
         resume_after)
    values (of_feed, of_shard, next.last_change_sequence_number, prev.sweep_id + 1,
            case when changes > 0 then clock_timestamp() else prev.swept_at end,
            next.snapshot, next.resume_xid, next.resume_after);
    -- Keep about one row a second, for the age of a number.
    select p.swept_at into mark
    from changefeed.progress p
    where p.feed_id = of_feed and p.shard = of_shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    offset 2 limit 1;
    if changes = 0 or mark > clock_timestamp() - interval '1 second' then
        delete from changefeed.progress p
        where p.feed_id = of_feed and p.shard = of_shard
          and p.last_change_sequence_number = prev.last_change_sequence_number
          and p.sweep_id = prev.sweep_id;
    end if;
    if longpoll and changes > 0 then
        perform pg_notify('changefeed', format('%s/%s/%s', of_feed, of_shard,
                                               next.last_change_sequence_number));
    end if;
    -- A ceiling: the time since the shard was last swept, or last found empty by this session.
    lag_milliseconds := ceil(extract(epoch from clock_timestamp()
                                     - greatest(prev.swept_at, since)) * 1000);
end $$;
