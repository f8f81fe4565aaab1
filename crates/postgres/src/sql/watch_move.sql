-- Moves committed changes to the backlogs of all functions that watch the table. The table's lock
-- is held since before this statement's snapshot.
with known as materialized (
    select t.generation = {generation} as all_functions
    from changefeed.watched_table t where t.table_id = {table_id}
),
-- Two scans instead of one with an OR, which would read the whole index.
scanned as materialized (
    select c.* from (
        (select l.ctid as place, l._changefeed_xid as xid, {log_keys},
                l._changefeed_order as version, l._changefeed_operation as op,
                l._changefeed_raw as raw, {log_columns} as columns, {log_before} as before,
                nullif(l._changefeed_by, '') as by
         from changefeed.{log} l
         where (select k.all_functions from known k) and {range}
         order by l._changefeed_xid, l._changefeed_order limit {chunk})
        union all
        (select l.ctid as place, l._changefeed_xid as xid, {log_keys},
                l._changefeed_order as version, l._changefeed_operation as op,
                l._changefeed_raw as raw, {log_columns} as columns, {log_before} as before,
                nullif(l._changefeed_by, '') as by
         from changefeed.{log} l
         where (select k.all_functions from known k) and {finished}
         order by l._changefeed_xid, l._changefeed_order limit {chunk})
    ) c
    order by c.xid, c.version
    limit {chunk}
),
moved as (
    delete from changefeed.{log} where ctid = any(array(select s.place from scanned s))
),
-- Versions of one key follow the order of its changes: whoever changes a row holds its lock. Chunks
-- do not: a transaction that began early may change a key last.
net as materialized (
    select {k}, min(s.version * 4 + s.op) & 3 as first, max(s.version * 4 + s.op) & 3 as last,
           max(s.version) as newest, {net_columns} as columns, {net_before} as before,
           -- Only where every one of these changes was made by the same function.
           case when count(s.by) = count(*) and min(s.by) = max(s.by) then min(s.by) end as by
    from scanned s
    where {k_not_null}
    group by {k}
),
numbered as materialized (
    select n.*, (select nextval('changefeed.change_version')) + row_number() over (order by newest)
           as version, {numbered_columns} as changed
    from net n
){functions}
select pg_current_snapshot()::text,
       -- Also for the statement behind this one: where there are more, nothing is leased yet.
       set_config('changefeed.moved', (select count(*) from scanned)::text, true)::bigint,
       (select s.xid::text || ',' || s.version from scanned s
        order by s.xid desc, s.version desc limit 1),
       (select t.generation from changefeed.watched_table t where t.table_id = {table_id}),
       -- Keys that cannot be read, and whether rows were truncated that nobody has seen.
       (select left(string_agg(s.raw::text, ' '), 200) from scanned s
        where s.raw is not null and not ({k_not_null})),
       exists (select from scanned s where s.op > 3)
