insert into changefeed_shard_ulid (feed_id, shard_id, time, ulid_high, ulid_low)
values (?1, ?2, ?3, ?4, ?5)
on conflict (feed_id, shard_id) do update
   set time = excluded.time, ulid_high = excluded.ulid_high, ulid_low = excluded.ulid_low
