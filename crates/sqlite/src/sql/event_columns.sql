e.change_id, t.name, t.table_name, e.op, e.old, e.new, e.session_variables, e.trace_context,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.created_at / 1000.0, 'unixepoch') as created_at,
       e.state, e.tries,
       case when e.due_at > cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
            then e.lease_owner end as locked_by,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.due_at / 1000.0, 'unixepoch') as due_at, e.bits, e.superseded_by,
       newest.status as last_status, newest.error as last_error
  from changefeed_event e
  join changefeed_event_trigger t on t.trigger_id = e.trigger_id
  left join changefeed_event_attempt newest on newest.attempt_id = (
       select max(a.attempt_id) from changefeed_event_attempt a where a.change_id = e.change_id)
