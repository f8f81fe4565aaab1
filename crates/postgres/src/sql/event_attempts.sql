select a.attempt, a.outcome, a.status, a.request, a.response, a.error, a.duration_ms, a.late,
       to_char(a.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created_at
from changefeed.event_attempt a
where a.change_id = $1
order by a.generation
