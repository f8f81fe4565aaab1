-- Transactions that have locked rows of a table of ours ($1), or could have: nobody can see who has locked a
-- row, but whoever did has a lock on its table too, until the end of the transaction. Those that were
-- prepared have no session; their own lock on their id tells which they are. The lock of a watched table is an
-- advisory one, which is seen.
select distinct l.virtualtransaction,
       case when a.pid is not null
            then format('session %s of %s (%s)', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'unnamed'))
                 || case when a.xact_start is null then ''
                         else format(', whose transaction began at %s', a.xact_start) end
            when p.gid is not null
            then format('the prepared transaction %L of %s, since %s', p.gid, p.owner, p.prepared)
            else 'a session that has just ended' end,
       case when a.pid is not null then format('select pg_terminate_backend(%s)', a.pid)
            when p.gid is not null then format('rollback prepared %L', p.gid)
            else 'look again' end
from pg_locks l
left join pg_stat_activity a on a.pid = l.pid
left join pg_locks x on l.pid is null and x.locktype = 'transactionid'
    and x.virtualtransaction = l.virtualtransaction
left join pg_prepared_xacts p on p.transaction = x.transactionid
where l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and case when $1::text <> 'watched_table'
           then l.locktype = 'relation' and l.mode <> 'AccessShareLock'
                and l.relation = to_regclass('changefeed.' || $1)
           else l.locktype = 'advisory' and l.objsubid = 1
                and exists (select from changefeed.watched_table t
                            where (l.classid::bigint << 32) | l.objid::bigint
                                  = hashtextextended('changefeed/watch/' || t.table_id, 0)) end
  and l.pid is distinct from pg_backend_pid()
  and not pg_is_in_recovery()
