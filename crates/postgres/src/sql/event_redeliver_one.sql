-- Makes one event pending again, unless somebody holds it at this moment, or a request with this key ($3)
-- was made before. Whoever comes second with a key waits here for the first.
with found as (
    select e.change_id, e.bits, e.locked_by is not null and e.due_at > clock_timestamp() as held,
           t.dropped_at is not null as dropped
    from changefeed.event e
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id
    where e.change_id = $1 and e.bits & 1152921504606846975 = $2
),
forgotten as (
    delete from changefeed.event_request r
    where r.created_at < clock_timestamp() - interval '1 day' and r.key <> $3
),
requested as (
    insert into changefeed.event_request (key, change_id, bits)
    select $3, f.change_id, f.bits from found f where not f.dropped and not f.held
    on conflict (key) do nothing
    returning change_id
),
done as (
    update changefeed.event e
    set state = 'p', due_at = changefeed.noted_time(), tries = 0, cut_off = 0, superseded_by = null,
        generation = e.generation + 1, locked_by = null,
        -- It may be from before its trigger kept an order.
        order_key = coalesce(e.order_key, e.change_id)
    from requested r
    -- One whose lease has run out is due in any case, and must be counted as cut off.
    where e.change_id = r.change_id and e.locked_by is null
      -- It waits for its first attempt already.
      and not (e.state = 'p' and e.tries = 0 and e.due_at <= clock_timestamp())
)
select not f.held or exists (select from changefeed.event_request r where r.key = $3), f.dropped
from found f
