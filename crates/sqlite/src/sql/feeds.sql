select f.feed_id, f.name, f.comment,
       coalesce(s.table_schema, u.table_schema), coalesce(s.table_name, u.table_name),
       s.change_id_column, s.shard_by, u.ulid_feed, u.shard_column, u.ulid_column,
       e.feed_id is not null, coalesce(s.images, 0), f.trim_after_ms, f.trim_unread_after_ms,
       s.condition, s.columns
  from changefeed_feed f
  left join changefeed_feed_source s on s.feed_id = f.feed_id
  left join changefeed_ulid_source u on u.feed_id = f.feed_id
  left join changefeed_event_feed e on e.feed_id = f.feed_id
 order by f.feed_id
