-- The newest number that a shard gave before a time, in milliseconds since 1970, and up to where it was trimmed.
select (select max(p.last_change_sequence_number)
        from changefeed.progress p
        where p.feed_id = d.feed_id and p.shard = d.shard
          and p.swept_at < 'epoch'::timestamptz + least($3::float8, 253402300799000) * interval '1 millisecond'),
       d.trimmed_to
from changefeed.shard_definition d
where d.feed_id = $1 and d.shard = $2
