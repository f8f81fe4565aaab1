select a.attempt, a.outcome, a.status, a.request, a.response, a.error, a.duration_ms, a.late,
       concat(replace(convert(varchar(40), a.created_at, 121), ' ', 'T'), N'Z') as created_at
from changefeed.event_attempt a
where a.change_id = @P1
order by a.generation
