select f.feed_id, f.name, f.comment, s.table_schema, s.table_name, s.change_id_column, s.shard_by
  from changefeed_feed f
  left join changefeed_feed_source s on s.feed_id = f.feed_id
 order by f.feed_id
