-- What there should be for a watch, and is not. A trigger that is enabled only for replicas ('R') is
-- as good as disabled.
with watched as materialized (
    select t.table_id, t.key, t.key_places, c.oid, c.oid::regclass::text as "table", c.relkind,
           '!changefeed_watch_' || t.table_id as ours
    from changefeed.watched_table t
    left join pg_class c on c.oid = t.source
    where t.table_id = $1
),
triggers as materialized (
    select g.tgname::text as name, g.tgenabled, g.tgtype, g.tgname::text collate "C" < w.ours as earlier,
           g.tgname in (w.ours, w.ours || '_truncate') as is_ours,
           -- Those of feeds and event triggers write to no row of the application's.
           g.tgfoid in (select f.oid from pg_proc f
                        where f.pronamespace = 'changefeed'::regnamespace) as writes_to_ours
    from watched w join pg_trigger g on g.tgrelid = w.oid
    where not g.tgisinternal
)
select w."table",
       array(select n.name
             from (values ('changefeed.leases_' || $2 || '_' || w.table_id),
                          ('changefeed.changes_' || w.table_id), ('changefeed.global_state')) n(name)
             where to_regclass(n.name) is null) as missing_tables,
       array(select quote_ident(n.name) from (values (w.ours), (w.ours || '_truncate')) n(name)
             where n.name not in (select t.name from triggers t)) as missing_triggers,
       array(select quote_ident(t.name) from triggers t
             where t.is_ours and t.tgenabled in ('D', 'R')) as disabled_triggers,
       -- Row triggers that run after an insert (bits 0 and 2; 1 is BEFORE, 6 INSTEAD OF).
       array(select quote_ident(t.name) from triggers t
             where not t.writes_to_ours and t.earlier and t.tgtype & 71 = 5) as earlier_triggers,
       coalesce(w.key_places = (
           select array_agg(k.attnum order by k.place)
           from pg_index x
           cross join lateral unnest(x.indkey::smallint[]) with ordinality k(attnum, place)
           where x.indrelid = w.oid and x.indisprimary and k.place <= x.indnkeyatts), false)
       and coalesce(w.key = (
           select array_agg(a.attname::text order by k.place)
           from pg_index x
           cross join lateral unnest(x.indkey::smallint[]) with ordinality k(attnum, place)
           join pg_attribute a on a.attrelid = x.indrelid and a.attnum = k.attnum
           where x.indrelid = w.oid and x.indisprimary and k.place <= x.indnkeyatts), false) as same_key,
       w.relkind = 'r' and exists (select from pg_inherits i where i.inhparent = w.oid) as has_heirs
from watched w
