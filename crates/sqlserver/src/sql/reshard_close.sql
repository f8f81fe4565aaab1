-- The rows of the table go to the shards from @P4 on, and nothing is added to those before.
update changefeed.shard set closed = 1 where feed_id = @P1 and shard between @P2 and @P3;
update changefeed.feed_source set first_shard = @P4, shards = @P5 where feed_id = @P1;
