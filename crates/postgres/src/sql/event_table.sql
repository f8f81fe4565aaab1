-- Whether a statement trigger sees everything that happens to a table, and in the right order. It
-- misses what is written to a partition directly or, on a partition, through its parent; and a row
-- trigger of the application's would come first with what it changes in turn.
select c.relkind = 'r' and not c.relispartition
       and not exists (select from pg_inherits i where c.oid in (i.inhparent, i.inhrelid))
       and not exists (
           select from pg_trigger t
           where t.tgrelid = c.oid and not t.tgisinternal
             and t.tgtype & 1 = 1 and t.tgtype & 66 = 0
             and t.tgname not like '00\_changefeed\_%'),
       array(select distinct changefeed.table_signature(p.oid)
             from (select c.oid
                   union all
                   select p.relid from pg_partition_tree(c.oid) p) p)
from pg_class c
where c.oid = $1
