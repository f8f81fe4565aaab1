-- Watches whose workers cannot have the lock of their table right now.
select format('watch %s', w.name), 'the lock of its table is taken, so nobody processes its changes'
from changefeed.watch w
where exists (select from pg_locks l
              where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                and l.database = (select d.oid from pg_database d where d.datname = current_database())
                and (l.classid::bigint << 32) | l.objid::bigint
                    = hashtextextended('changefeed/watch/' || w.table_id, 0)
                and l.pid is distinct from pg_backend_pid())
order by w.name
limit 100
