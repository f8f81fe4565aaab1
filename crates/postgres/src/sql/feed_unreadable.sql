-- Why nobody could read the rows of a new feed, of this kind, and what to do about it.
select coalesce(l.problem, p.problem), coalesce(l.advice, p.advice)
from changefeed.feed_source f
left join lateral changefeed.lost_key(f.feed_id) l on $2 = 'captured'
left join lateral (
    select u.problem, u.advice from changefeed.unreadable(f.source) u
    where exists (select from pg_partition_tree(f.source) t join pg_class c on c.oid = t.relid
                  where c.relkind = 'f')) p on true
where f.feed_id = $1
