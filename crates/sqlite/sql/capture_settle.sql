-- Of the rows noted before, those that have left their key or their shard are changes.
  insert into changefeed_captured (feed_id, shard, {keys})
  select s.feed_id, s.shard, {staged_key} from changefeed_staged s
   where s.feed_id = {feed}
     and not exists (select 1 from {table} as changefeed_row where {same_place});
  delete from changefeed_staged where feed_id = {feed};
