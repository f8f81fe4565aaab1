-- Deadlocks that the session system_health remembers, of which one side was in this database.
select convert(nvarchar(max), x.e.query('.'))
from (select convert(xml, t.target_data) as d
      from sys.dm_xe_session_targets t
      join sys.dm_xe_sessions s on s.address = t.event_session_address
      where s.name = N'system_health' and t.target_name = N'ring_buffer') r
cross apply r.d.nodes('RingBufferTarget/event[@name="xml_deadlock_report"]') x(e)
where charindex(concat(N'currentdb="', db_id(), N'"'), convert(nvarchar(max), x.e.query('.'))) > 0
   or charindex(db_name(), convert(nvarchar(max), x.e.query('.'))) > 0
