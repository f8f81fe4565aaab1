-- What was executed in this database more than once, with its plan; the costliest first.
select top (300)
       substring(t.text, s.statement_start_offset / 2 + 1,
                 case when s.statement_end_offset < 0 then 400
                      else (s.statement_end_offset - s.statement_start_offset) / 2 + 1 end),
       p.query_plan
from sys.dm_exec_query_stats s
cross apply sys.dm_exec_sql_text(s.sql_handle) t
cross apply sys.dm_exec_text_query_plan(s.plan_handle, s.statement_start_offset, s.statement_end_offset) p
cross apply sys.dm_exec_plan_attributes(s.plan_handle) a
where a.attribute = N'dbid' and convert(int, a.value) = db_id() and s.execution_count > 1
  and t.text like N'%changefeed%' and p.query_plan is not null
order by s.total_worker_time desc
