-- The application's tables that definitions are about, each with whether nobody may even read it:
-- a trigger is made while others read, and dropped while nobody does.
with wanted (source, exclusively) as (
    select to_regclass(name)::oid, false from unnest($1::text[]) name
    union all
    -- Its trigger is made once for all watches of a table,
    select c.oid, false
    from unnest($2::text[]) name join pg_class c on c.oid = to_regclass(name)::oid
    where not exists (
        select from pg_trigger t
        where t.tgrelid = c.oid and t.tgname like '!changefeed\_watch\_%')
    union all
    select source::oid, true from changefeed.event_trigger
    where dropped_at is null and (name = any($3::text[]) or trigger_id = any($4::integer[]))
    union all
    select source::oid, true from changefeed.feed_source
    where kind = 'captured' and feed_id = any($5::smallint[])
    union all
    -- and dropped with the last of them.
    select t.source::oid, true from changefeed.watched_table t
    where exists (select from changefeed.watch w
                  where w.table_id = t.table_id and w.name = any($6::text[]))
      and not exists (select from changefeed.watch w
                      where w.table_id = t.table_id and w.name <> all($6::text[]))
)
select n.nspname::text, c.relname::text, bool_or(w.exclusively)
from wanted w
left join lateral pg_partition_tree(w.source) p on true
join pg_class c on c.oid = coalesce(p.relid, w.source) and c.relkind in ('r', 'p')
join pg_namespace n on n.oid = c.relnamespace
-- A trigger can be made with fewer rights than a lock is taken with. Then we meet writers later, when
-- we wait for no more than a moment.
where pg_has_role(c.relowner, 'usage') or has_table_privilege(c.oid, 'update, delete, truncate')
group by 1, 2
order by 1, 2
