-- Has a shard begin elsewhere, in a new epoch: after a cursor, or at its beginning ($4 is null).
with restarted as (
    update changefeed.subscription_shard s set epoch = s.epoch + 1, held = null, stopped = null
    where s.name = $1 and s.shard = $2
    returning s.name, s.shard, s.epoch
), begun as (
    insert into changefeed.consumer (name, feed_id, shard, cursor)
    select r.name, $3::smallint, r.shard, $4::text from restarted r where $4::text is not null
    on conflict (name, feed_id, shard) do update set cursor = excluded.cursor
), forgotten as (
    delete from changefeed.consumer c using restarted r
    where $4::text is null and c.name = r.name and c.feed_id = $3::smallint and c.shard = r.shard
)
select r.epoch from restarted r
