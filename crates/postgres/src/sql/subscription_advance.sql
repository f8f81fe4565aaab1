-- Moves the position of a shard and counts, if the lease's generation, the epoch and the position are as believed. One
-- statement: a process that is stopped between two of them would keep the shard's row locked, and who takes over
-- would wait for it. Returns whether the shard is ours, and whether the position was moved.
with lane as (
    select s.name, s.shard from changefeed.subscription_shard s
    where s.name = $1 and s.shard = $2 and s.generation = $3 and s.epoch = $4::integer
    for update
), moved as (
    update changefeed.consumer c set cursor = $9::text
    from lane l
    where c.name = l.name and c.feed_id = $10::smallint and c.shard = l.shard and c.cursor = $8::text
    returning 1
), begun as (
    insert into changefeed.consumer (name, feed_id, shard, cursor)
    select l.name, $10::smallint, l.shard, $9::text from lane l where $8::text is null
    on conflict do nothing
    returning 1
), done as (
    select 1 from moved union all select 1 from begun
), counted as (
    update changefeed.subscription_shard s
    set held = $5::text, sent = s.sent + $6::bigint, lost = s.lost + $7::bigint, parked = s.parked + ($11::text is not null)::integer
    from lane l
    where s.name = l.name and s.shard = l.shard and exists (select from done)
), left_out as (
    insert into changefeed.subscription_parked (name, shard, epoch, cursor, reason)
    select l.name, l.shard, $4::integer, $9::text, $11::text from lane l where $11::text is not null and exists (select from done)
    on conflict do nothing
)
select exists (select from lane), exists (select from done)
