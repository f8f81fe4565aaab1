with logged as (
    insert into changefeed.event (change_id, trigger_id, op, new, order_key)
    select id, t.trigger_id, 'M', $2::text::json,
           case when jsonb_typeof(t.definition -> 'capture' -> 'order_by') <> 'null' then id end
    from changefeed.event_trigger t, nextval('changefeed.change_id') id
    where t.trigger_id = $1 and t.dropped_at is null
    returning change_id, bits
),
published as (
    insert into changefeed.change (feed_id, shard, change_id)
    select t.feed_id, 0, l.change_id
    from logged l join changefeed.event_trigger t on t.trigger_id = $1
    where t.feed_id is not null
)
select l.change_id, l.bits from logged l
