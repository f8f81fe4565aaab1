-- The change of the row at hand tells of its own place.
  insert into changefeed_captured (feed_id, shard, op, {keys}, old, new)
  select {feed}, shard, 'D', {keys}, old, null from changefeed_staged
   where owner = {feed} and live = 2
     and not ({keys_are_its} and shard = {its_shard})
