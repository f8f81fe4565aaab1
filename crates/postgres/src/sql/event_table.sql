-- Whether a statement trigger sees everything that happens to a table, and in the right order. It
-- misses what is written to a partition directly or, on a partition, through its parent; and a row
-- trigger of the application's that fires for what is inserted, or after anything, would come first
-- with what it changes in turn.
select c.relkind = 'r' and not c.relispartition
       and not exists (select from pg_inherits i where c.oid in (i.inhparent, i.inhrelid))
       and not exists (
           select from pg_trigger t
           where t.tgrelid = c.oid and not t.tgisinternal
             and t.tgtype & 1 = 1 and (t.tgtype & 66 = 0 or t.tgtype & 70 = 6)
             and t.tgname not like '!changefeed\_%'),
       -- As known_columns() knows them.
       array[format('%s;%s;%s', changefeed.table_signature(c.oid),
                    case c.relkind when 'p' then pg_partition_root(c.oid)::oid end,
                    case c.relkind when 'p' then (select r.relnatts from pg_class r
                                                  where r.oid = pg_partition_root(c.oid))
                                   else c.relnatts end)],
       array(select format('%I.%I', n.nspname, p.relname)
             from pg_partition_tree(c.oid) t
             join pg_class p on p.oid = t.relid and p.relkind in ('r', 'p') and p.oid <> c.oid
             join pg_namespace n on n.oid = p.relnamespace),
       exists (select from pg_inherits i join pg_class p on p.oid = i.inhrelid
               where i.inhparent = c.oid and not p.relispartition)
from pg_class c
where c.oid = $1
