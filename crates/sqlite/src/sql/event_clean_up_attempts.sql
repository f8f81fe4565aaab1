-- Old attempts of finished events, oldest events first.
delete from changefeed_event_attempt
 where attempt_id in (
   select a.attempt_id
     from changefeed_event_attempt a
     join changefeed_event e on e.change_id = a.change_id
    where (?1 is null or e.trigger_id = ?1) and e.state not in ('p', 'e')
      and a.created_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - ?2
    order by a.attempt_id
    limit ?3)
