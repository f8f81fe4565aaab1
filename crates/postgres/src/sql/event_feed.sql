select f.feed_id, s.kind,
       (select count(*) from changefeed.shard_definition d where d.feed_id = f.feed_id)
from changefeed.feed f
left join changefeed.feed_source s on s.feed_id = f.feed_id
where f.name = $1
