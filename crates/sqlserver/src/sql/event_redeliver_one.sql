-- Makes one event pending again, unless somebody holds it at this moment, or a request with this key (@P3) was
-- made before. One whose lease has run out is due in any case, and must be counted as cut off. Returns
-- whether it is on its way, and whether its trigger was dropped.
declare @key uniqueidentifier = convert(uniqueidentifier, @P3);
exec changefeed.note_time;
begin transaction;
delete from changefeed.event_request where created_at < dateadd(day, -1, sysutcdatetime()) and request_key <> @key;
-- Whoever comes second waits here for the first.
if not exists (select 1 from changefeed.event_request r with (updlock, holdlock) where r.request_key = @key)
begin
    insert into changefeed.event_request (request_key, change_id, bits)
    select @key, e.change_id, e.bits
    from changefeed.event e
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id and t.dropped_at is null
    where e.change_id = @P1 and e.bits & convert(bigint, 1152921504606846975) = @P2
      and (e.locked_by is null or e.due_at <= sysutcdatetime());
    update changefeed.event
    set state = 'p', due_at = sysutcdatetime(), tries = 0, cut_off = 0, superseded_by = null, generation = generation + 1,
        -- It may be from before its trigger kept an order.
        order_key = isnull(order_key, change_id)
    where change_id = @P1 and bits & convert(bigint, 1152921504606846975) = @P2 and locked_by is null
      -- It waits for its first attempt already.
      and not (state = 'p' and tries = 0 and due_at <= sysutcdatetime())
      and exists (select 1 from changefeed.event_trigger t
                  where t.trigger_id = changefeed.event.trigger_id and t.dropped_at is null);
end;
commit transaction;
select convert(bit, case when e.locked_by is null or e.due_at <= sysutcdatetime()
                           or exists (select 1 from changefeed.event_request r where r.request_key = @key)
                         then 1 else 0 end),
       convert(bit, case when t.dropped_at is not null then 1 else 0 end)
from changefeed.event e
join changefeed.event_trigger t on t.trigger_id = e.trigger_id
where e.change_id = @P1 and e.bits & convert(bigint, 1152921504606846975) = @P2
