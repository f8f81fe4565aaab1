insert into changefeed_event_attempt
  (change_id, number, outcome, status, request, response, error, duration_ms, late, created_at)
select change_id, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9,
       cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
  from changefeed_event where change_id = ?1
