-- The rows of the table go to other shards from now on, and nothing is added to those before.
update changefeed.shard set closed = 1 where feed_id = {feed} and shard between {first} and {last};
update changefeed.feed_source set first_shard = {new_first}, shards = {new_count} where feed_id = {feed}
