-- Makes a batch of events pending again that are not waiting anyway, behind those of the last batch with the
-- same key (@P1). Returns how far that was, 0 at the end, and how many it were in all.
declare @key uniqueidentifier = convert(uniqueidentifier, @P1), @reached bigint;
declare @picked table (change_id bigint not null primary key, generation int not null);
declare @done table (change_id bigint not null);
exec changefeed.note_time;
begin transaction;
delete from changefeed.event_request where created_at < dateadd(day, -1, sysutcdatetime()) and request_key <> @key;
-- Whoever comes second waits here for the first.
select @reached = r.change_id
from changefeed.event_request r with (updlock, holdlock) where r.request_key = @key;
if @reached is null
begin
    set @reached = 9223372036854775807;
    insert into changefeed.event_request (request_key, change_id, bits) values (@key, @reached, 0);
end;
if @reached <> 0
begin
    insert into @picked (change_id, generation)
    select top ({batch}) e.change_id, e.generation
    from changefeed.event e with (readcommittedlock, readpast)
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id and t.dropped_at is null
    where e.state <> 'p' and e.change_id < @reached and {matching}
    order by e.change_id desc;
    update changefeed.event
    set state = 'p', due_at = sysutcdatetime(), tries = 0, cut_off = 0, superseded_by = null, generation = generation + 1,
        locked_by = null, order_key = isnull(order_key, change_id)
    output inserted.change_id into @done (change_id)
    -- By their keys: a search through all events would wait for writers.
    from (select x.change_id as picked_id from @picked x) h --@sqlserver
    join changefeed.event with (forceseek) on changefeed.event.change_id = h.picked_id --@sqlserver
    where state <> 'p'
      and exists (select 1 from @picked p where p.change_id = changefeed.event.change_id
                    and p.generation = changefeed.event.generation)
    option (loop join, force order) --@sqlserver
    ;
    update changefeed.event_request
    set change_id = isnull((select min(p.change_id) from @picked p), 0),
        bits = bits + (select count_big(*) from @done)
    where request_key = @key;
end;
commit transaction;
select r.change_id, r.bits from changefeed.event_request r where r.request_key = @key
