select {top} e.change_id, e.state, convert(int, e.tries) as tries, e.locked_by,
       case when e.due_at is not null
            then concat(replace(convert(varchar(40), e.due_at, 121), ' ', 'T'), N'Z') end as due_at,
       e.op, e.old, e.new, e.session_variables, e.trace_context,
       concat(replace(convert(varchar(40), e.created_at, 121), ' ', 'T'), N'Z') as created_at,
       t.name, t.schema_name, t.table_name, e.bits, e.superseded_by, newest.status as last_status, newest.error as last_error
from changefeed.event e {past}
join changefeed.event_trigger t on t.trigger_id = e.trigger_id
outer apply (
    select top (1) a.status, a.error
    from changefeed.event_attempt a {past}
    where a.change_id = e.change_id and a.late = 0
    order by a.generation desc
) newest
where {matching}
order by e.change_id desc
