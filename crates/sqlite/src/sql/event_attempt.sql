-- An attempt is a row once, by the generation under which it was made (?10; the event's own for one
-- that was cut off). Said twice, it is there already; but what was thought cut off is known now.
insert into changefeed_event_attempt
  (change_id, generation, number, outcome, status, request, response, error, duration_ms, late,
   created_at)
select change_id, coalesce(?10, generation), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9,
       cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
  from changefeed_event where change_id = ?1
    on conflict (change_id, generation) do update
   set outcome = excluded.outcome, late = excluded.late, status = excluded.status,
       request = excluded.request, response = excluded.response, error = excluded.error,
       duration_ms = excluded.duration_ms
 where changefeed_event_attempt.outcome = 'unknown' and excluded.outcome <> 'unknown'
