  insert into changefeed_captured (feed_id, shard, op, {keys}, old, new)
  select {feed}, shard, 'D', {keys}, old, null from changefeed_staged
   where owner = {feed} and live = 2 and old is not null
