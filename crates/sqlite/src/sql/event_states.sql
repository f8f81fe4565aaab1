select t.name,
       (select count(*) from (select 1 from changefeed_event e indexed by changefeed_event_due
                               where e.trigger_id = t.trigger_id and e.due_at is not null
                               limit 100000)),
       (select count(*) from changefeed_event e indexed by changefeed_event_leased
         where e.trigger_id = t.trigger_id and e.lease_owner is not null
           and e.due_at > cast((julianday('now') - 2440587.5) * 86400000.0 as integer)),
       (select count(*) from (select 1 from changefeed_event e indexed by changefeed_event_done
                               where e.trigger_id = t.trigger_id and e.state = 'e'
                                 and e.due_at is null
                               limit 100000)),
       (select cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - e.due_at
          from changefeed_event e indexed by changefeed_event_due
         where e.trigger_id = t.trigger_id and e.due_at is not null
           and e.due_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
         order by e.due_at limit 1)
  from changefeed_event_trigger t
 where t.dropped_at is null
 order by t.name
