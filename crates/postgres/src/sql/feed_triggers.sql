-- The feeds that capture a table, and what they capture it with: whether the row trigger and that for
-- TRUNCATE are there and fire, and the text of their function. For a feed with images also the test for the
-- columns of now, which a function that fits the table has in it. Then what became of the key, and whether the
-- column that decides the shard is there.
select s.feed_id, c.oid is not null, r.tgenabled::text, t.tgenabled::text, p.prosrc,
       case when s.images and c.oid is not null then changefeed.known_columns(c.oid, 'new') end,
       l.problem, l.advice,
       s.shard_by is null or exists (select from pg_attribute a where a.attrelid = s.source and a.attname = s.shard_by
                                     and a.attnum > 0 and not a.attisdropped)
from changefeed.feed_source s
left join pg_class c on c.oid = s.source
left join pg_trigger r on r.tgrelid = s.source and r.tgname = '!changefeed_' || s.feed_id
left join pg_trigger t on t.tgrelid = s.source and t.tgname = '!changefeed_' || s.feed_id || '_truncate'
left join pg_proc p on p.pronamespace = 'changefeed'::regnamespace and p.proname = 'capture_' || s.feed_id
cross join lateral changefeed.lost_key(s.feed_id) l
where s.kind = 'captured'
order by s.feed_id
