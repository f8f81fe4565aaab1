select f.feed_id, f.name::text, f.comment, s.kind, n.nspname::text, c.relname::text,
       s.change_id_column, s.shard_by, s.ulid_feed, s.shard_column, s.ulid_column, s.images,
       f.trim_after_ms, f.trim_unread_after_ms,
       s.condition, s.columns
from changefeed.feed f
left join changefeed.feed_source s on s.feed_id = f.feed_id
left join pg_class c on c.oid = s.source
left join pg_namespace n on n.oid = c.relnamespace
order by f.feed_id
