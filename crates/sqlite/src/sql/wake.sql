-- What moves when there is something to read: the newest number, the frontier of a backfill,
-- where the ULIDs stand, and whether the shard is closed.
select d.feed_id, d.shard,
       coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                  where n.feed_id = d.feed_id and n.shard = d.shard), 0),
       d.frontier, u.ulid_high, u.ulid_low, d.closed
  from changefeed_shard_def d
  left join changefeed_ulid_source s on s.feed_id = d.feed_id
  left join changefeed_shard_ulid u on u.feed_id = s.ulid_feed and u.shard_id = d.shard
