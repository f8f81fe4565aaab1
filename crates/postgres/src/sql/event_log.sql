select e.change_id, e.state::text, e.tries::integer, e.locked_by,
       to_char(e.due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as due_at,
       e.op::text, e.old, e.new, e.session_variables, e.trace_context,
       to_char(e.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created_at,
       t.name::text, t.schema_name, t.table_name, e.bits, e.superseded_by, newest.status as last_status, newest.error as last_error
from changefeed.event e
join changefeed.event_trigger t on t.trigger_id = e.trigger_id
left join lateral (
    select a.status, a.error
    from changefeed.event_attempt a
    where a.change_id = e.change_id and not a.late
    order by a.generation desc
    limit 1
) newest on true
