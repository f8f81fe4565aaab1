-- The events that were taken, in order, as long as they are ours and until there is enough to do:
-- at least one, and then as many as fit into a number of bytes.
select p.change_id, p.trigger_id, p.generation, p.tries, p.cut_off, p.op, p.old, p.new,
       p.session_variables, p.trace_context, p.created_at, p.name, p.schema_name, p.table_name, p.bits
from (
    select e.change_id, e.trigger_id, convert(bigint, e.generation) as generation,
           convert(int, e.tries) as tries, convert(int, e.cut_off) as cut_off, e.op, e.old, e.new,
           e.session_variables, e.trace_context,
           concat(replace(convert(varchar(40), e.created_at, 121), ' ', 'T'), N'Z') as created_at,
           t.name, t.schema_name, t.table_name, e.bits,
           row_number() over (order by e.change_id) as place,
           sum(isnull(datalength(e.old), 0) + isnull(datalength(e.new), 0))
               over (order by e.change_id rows unbounded preceding) as bytes
    from openjson(@P1) with (change_id bigint, generation int) h
    join changefeed.event e with (forceseek) on e.change_id = h.change_id and e.generation = h.generation
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id
    where e.locked_by is not null
) p
where p.place = 1 or p.bytes <= @P2
order by p.change_id
option (loop join, force order) --@sqlserver
