-- An event by hand, unless a request with this key ($3) was made before. Whoever comes second waits
-- here for the first, and gets no row.
with forgotten as (
    delete from changefeed.event_request r
    where r.created_at < clock_timestamp() - interval '1 day' and r.key <> $3
),
requested as (
    insert into changefeed.event_request (key, change_id)
    select $3, nextval('changefeed.change_id')
    from changefeed.event_trigger t
    where t.trigger_id = $1 and t.dropped_at is null
    on conflict (key) do nothing
    returning change_id, bits
),
logged as (
    insert into changefeed.event (change_id, trigger_id, feed_id, op, new, due_at, order_key, bits)
    select r.change_id, t.trigger_id, t.feed_id, 'M', $2::text::json, changefeed.first_due(t.wait_ms),
           case when t.definition -> 'in_order' <> 'false' then r.change_id end,
           r.bits
    from requested r join changefeed.event_trigger t on t.trigger_id = $1
    returning change_id, bits
),
published as (
    insert into changefeed.change (feed_id, shard, change_id)
    select t.feed_id, 0, l.change_id
    from logged l join changefeed.event_trigger t on t.trigger_id = $1
    where t.feed_id is not null
)
select l.change_id, l.bits from logged l
