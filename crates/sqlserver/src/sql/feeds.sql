-- Texts come as Unicode: the driver does not know every code page that a database can have.
select f.feed_id, convert(nvarchar(100), f.name), f.comment, convert(nvarchar(10), s.kind), convert(nvarchar(128), schema_name(o.schema_id)), convert(nvarchar(128), o.name),
       s.change_id_column, s.shard_by, s.ulid_feed, s.shard_column, s.ulid_column, s.images,
       f.trim_after_ms, f.trim_unread_after_ms, s.condition, s.columns
from changefeed.feed f
left join changefeed.feed_source s on s.feed_id = f.feed_id
left join sys.objects o on o.object_id = s.table_id
order by f.feed_id
