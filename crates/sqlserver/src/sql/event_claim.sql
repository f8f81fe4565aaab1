-- Takes what is due, oldest first, trigger by trigger, each in a transaction of its own: nothing
-- is locked when this batch is over, whatever becomes of its answer. The answer is numbers only;
-- the rows are read afterwards, without a lock.
--
-- Where the database does not version rows, what a long transaction of the application has
-- written is locked, and whoever reads it waits. So everything here passes by what is locked, or
-- looks at it as it is. What that may get wrong is set right before anything is taken.
declare @owner nvarchar(400) = left(@P2, 400), @lease_seconds int = @P3, @lease_milliseconds int = @P4;
declare @wanted table (trigger_id int not null primary key, room int not null, overall int null,
                       ordered bit not null, debounced bit not null, paced bit not null, walk bigint null);
declare @due table (change_id bigint not null primary key, generation int not null,
                    tries smallint not null, locked_by nvarchar(400) null);
declare @taken table (change_id bigint not null primary key, generation int not null,
                      trigger_id int not null);
declare @mine table (change_id bigint not null primary key, generation int not null);
declare @last table (order_key bigint not null primary key, change_id bigint not null);
declare @debounced bit, @paced bit, @pace bigint, @burst int, @paced_at datetime2(6), @step bigint;
declare @walked table (trigger_id int not null primary key, walk bigint null);
declare @trigger int = -2147483648, @room int, @overall int, @ordered bit, @walk bigint;
declare @now datetime2(6), @held int, @key bigint, @head bigint, @head_due datetime2(6), @steps int;
exec changefeed.note_time;
insert into @wanted (trigger_id, room, overall, ordered, debounced, paced, walk)
select w.trigger_id, w.room, w.overall, w.ordered, w.debounced, w.paced, w.walk
from openjson(@P1) with (trigger_id int, room int, overall int, ordered bit, debounced bit, paced bit, walk bigint) w;
while 1 = 1
begin
    set @room = null;
    select top (1) @trigger = w.trigger_id, @room = w.room, @overall = w.overall,
           @ordered = w.ordered, @debounced = w.debounced, @paced = w.paced, @walk = w.walk
    from @wanted w where w.trigger_id > @trigger order by w.trigger_id;
    if @room is null break;
    set @now = sysutcdatetime();
    if not exists (select 1 from changefeed.event e with (readcommittedlock, readpast)
                   where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null)
        continue;
    -- Somebody may be changing it, and wait for its table meanwhile.
    if not exists (select 1 from changefeed.event_trigger t with (readuncommitted)
                   where t.trigger_id = @trigger and t.paused_because is null and t.dropped_at is null)
        continue;
    delete from @due;
    delete from @mine;
    begin transaction;
    -- Whoever counts what all of them hold must be alone with it. Babelfish knows no READPAST, so
    -- that all who claim would take the same events there and wait for each other row by row.
    if @overall is not null or @paced = 1 --@sqlserver
    update changefeed.event_trigger with (updlock, rowlock) set updated_at = updated_at where trigger_id = @trigger;
    if @overall is not null
    begin
        select @held = count(*) from changefeed.event e with (readuncommitted)
        where e.trigger_id = @trigger and e.due_at > @now and e.locked_by is not null;
        if @overall - @held < @room set @room = @overall - @held;
    end;
    -- Read only now, with the lock held: somebody may have taken what was due before.
    set @now = sysutcdatetime();
    if @paced = 1
    begin
        -- Requests that were not made are kept, up to a burst.
        select @pace = isnull(t.pace_us, 1), @burst = t.burst, @paced_at = isnull(t.paced_at, dateadd(day, -2, @now))
        from changefeed.event_trigger t where t.trigger_id = @trigger;
        set @step = datediff_big(microsecond, @paced_at, @now) / @pace;
        if @step > @burst set @step = @burst;
        if @step < @room set @room = @step;
    end;
    -- Of the events of a key whose first one is due, the last is delivered for all: the others are marked. Only what
    -- was never tried takes part, and nothing that a person has sent.
    if @room > 0 and @debounced = 1
    begin
        delete from @last;
        insert into @last (order_key, change_id)
        select w.order_key, max(w.change_id)
        from (select distinct h.order_key
              from (select top (@P5) e.order_key
                    from changefeed.event e with (readcommittedlock, readpast)
                    where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null
                      and e.generation = 0 and e.op <> 'M' and e.order_key is not null
                    order by e.due_at, e.change_id) h) k
        join changefeed.event w with (readcommittedlock, readpast)
            on w.trigger_id = @trigger and w.order_key = k.order_key and w.due_at is not null
            and w.generation = 0 and w.op <> 'M'
        group by w.order_key
        having count(*) > 1;
        update e
        set state = 'c', due_at = null, superseded_by = l.change_id
        from @last l
        join changefeed.event e with (updlock, readpast, rowlock, forceseek)
            on e.trigger_id = @trigger and e.order_key = l.order_key and e.change_id < l.change_id
        where e.due_at is not null and e.generation = 0 and e.op <> 'M';
        update e
        set due_at = @now
        from @last l
        join changefeed.event e with (updlock, readpast, rowlock, forceseek) on e.change_id = l.change_id
        where e.due_at is not null and e.generation = 0;
    end;
    if @room > 0 and @ordered = 0
        insert into @due (change_id, generation, tries, locked_by)
        select top (@room) e.change_id, e.generation, e.tries, e.locked_by
        from changefeed.event e with (updlock, readpast, rowlock)
        where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null
        order by e.due_at, e.change_id;
    if @room > 0 and @ordered = 1
    begin
        -- The oldest unfinished event of its key: also one that is locked, or not committed yet.
        insert into @due (change_id, generation, tries, locked_by)
        select top (@room) h.change_id, h.generation, h.tries, h.locked_by
        from (select top (@P5) e.change_id, e.generation, e.tries, e.locked_by, e.order_key, e.due_at
              from changefeed.event e with (readcommittedlock, readpast)
              where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null
              order by e.due_at, e.change_id) h
        where h.change_id = (select top (1) o.change_id from changefeed.event o with (readuncommitted)
                             where o.trigger_id = @trigger and o.order_key = h.order_key
                               and o.due_at is not null
                             order by o.change_id)
        order by h.due_at, h.change_id;
        -- More is due than was looked at: go from key to key, where the last walk ended, so that
        -- neither a key with very many events nor very many keys that wait hide others. Each step
        -- is one through the index.
        if (select count(*) from @due) < @room
           and (select count(*) from (select top (@P5 + 1) e.change_id from changefeed.event e with (readcommittedlock, readpast)
                where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null
                order by e.due_at, e.change_id) more) > @P5
        begin
            set @key = isnull(@walk, -9223372036854775808);
            set @steps = 0;
            while @steps < @P6 and (select count(*) from @due) < @room
            begin
                set @head = null;
                if @steps = 0
                    select top (1) @key = e.order_key, @head = e.change_id, @head_due = e.due_at
                    from changefeed.event e with (readuncommitted)
                    where e.trigger_id = @trigger and e.due_at is not null and e.order_key >= @key
                    order by e.order_key, e.change_id;
                else
                    select top (1) @key = e.order_key, @head = e.change_id, @head_due = e.due_at
                    from changefeed.event e with (readuncommitted)
                    where e.trigger_id = @trigger and e.due_at is not null and e.order_key > @key
                    order by e.order_key, e.change_id;
                if @head is null
                begin
                    -- Behind the last key: the next walk begins at the first.
                    set @key = null;
                    break;
                end;
                if @head_due <= @now
                    insert into @due (change_id, generation, tries, locked_by)
                    select e.change_id, e.generation, e.tries, e.locked_by
                    from changefeed.event e with (readcommittedlock, readpast)
                    where e.change_id = @head and e.due_at <= @now
                      and not exists (select 1 from @due d where d.change_id = @head);
                set @steps = @steps + 1;
            end;
            insert into @walked (trigger_id, walk) values (@trigger, @key);
        end;
        -- An older one that looked finished may come back, if whoever finishes it rolls back. That
        -- is waited for: it takes a moment, and keys with something uncommitted are not here.
        delete d from @due d
        where exists (select 1 from changefeed.event e with (forceseek)
                      join changefeed.event o with (forceseek) on o.trigger_id = e.trigger_id
                          and o.order_key = e.order_key and o.change_id < e.change_id
                      where e.change_id = d.change_id and o.due_at is not null)
        option (loop join) --@sqlserver
        ;
    end;
    -- Claimed is what this changes: whoever was quicker has moved the others. By their keys: a search
    -- through all that is due would wait for writers.
    update changefeed.event
    set due_at = dateadd(millisecond, @lease_milliseconds, dateadd(second, @lease_seconds, @now)),
        generation = generation + 1,
        -- Counted now: whoever dies in the middle has made an attempt.
        tries = case when tries < 32767 then tries + 1 else tries end,
        cut_off = case when locked_by is not null and cut_off < 32767 then cut_off + 1 else cut_off end,
        locked_by = @owner
    output inserted.change_id, inserted.generation into @mine (change_id, generation)
    from (select x.change_id as due_id from @due x) h --@sqlserver
    join changefeed.event with (forceseek) on changefeed.event.change_id = h.due_id --@sqlserver
    where due_at <= @now
      and exists (select 1 from @due d
                  where d.change_id = changefeed.event.change_id
                    and d.generation = changefeed.event.generation and d.tries = changefeed.event.tries
                    and isnull(d.locked_by, N'') = isnull(changefeed.event.locked_by, N''))
    option (loop join, force order) --@sqlserver
    ;
    -- Somebody held it and has not come back.
    insert into changefeed.event_attempt (change_id, generation, trigger_id, attempt, outcome, error)
    select d.change_id, d.generation, @trigger, d.tries, 'unknown',
           concat(d.locked_by, N' stopped before the outcome was known')
    from @due d join @mine m on m.change_id = d.change_id
    where d.locked_by is not null
      and not exists (select 1 from changefeed.event_attempt a
                      where a.change_id = d.change_id and a.generation = d.generation);
    if @paced = 1
    begin
        -- Not before what a burst keeps.
        set @step = @pace * @burst;
        if @paced_at < dateadd(microsecond, convert(int, -(@step % 1000000)), dateadd(second, convert(int, -(@step / 1000000)), @now))
            set @paced_at = dateadd(microsecond, convert(int, -(@step % 1000000)), dateadd(second, convert(int, -(@step / 1000000)), @now));
        set @step = @pace * (select count(*) from @mine);
        update changefeed.event_trigger
        set paced_at = dateadd(microsecond, convert(int, @step % 1000000), dateadd(second, convert(int, @step / 1000000), @paced_at))
        where trigger_id = @trigger and @step > 0;
    end;
    insert into @taken (change_id, generation, trigger_id)
    select m.change_id, m.generation, @trigger from @mine m;
    commit transaction;
end;
select t.change_id, convert(bigint, t.generation), t.trigger_id, convert(bit, 0), convert(bigint, null)
from @taken t
union all
select null, null, w.trigger_id, convert(bit, 1), w.walk from @walked w
