-- The next rows in order of their change_id; those that the application has published already
-- are passed over. A row and its change are committed together, so both are seen or neither is.
with state as materialized (
    select b.last_key from changefeed.backfill b where b.feed_id = $1
),
seen as materialized (
    select {order}::bigint as change_id, {shard} as shard,
           pg_catalog.jsonb_build_array({order}::text) as key,
           row_number() over (order by {order}) as ord
    from state cross join lateral (
        select * from {table} t where changefeed.same_row(t.*, $3) and {order} is not null {resume}
        order by {order} limit $2
    ) t
),
published as materialized (
    select n.change_id from changefeed.numbered n
    where n.feed_id = $1
      and n.change_id between (select min(change_id) from seen) and (select max(change_id) from seen)
    union all
    select i.change_id from changefeed.inbox i
    where i.feed_id = $1
      and i.change_id between (select min(change_id) from seen) and (select max(change_id) from seen)
),
picked as materialized (
    select s.* from seen s
    where not exists (select from published p where p.change_id = s.change_id)
),
{number}
