select number, outcome, status, request, response, error, duration_ms, late,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') as created_at
  from changefeed_event_attempt
 where change_id = ?1
 order by attempt_id
