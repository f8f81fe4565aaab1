select t.name,
       (select count_big(*) from (select top (100000) e.change_id from changefeed.event e with (readcommittedlock, readpast)
                                  where e.trigger_id = t.trigger_id and e.due_at is not null) p),
       (select count_big(*) from changefeed.event e with (readcommittedlock, readpast)
        where e.trigger_id = t.trigger_id and e.due_at > sysutcdatetime()
          and e.locked_by is not null),
       (select count_big(*) from (select top (100000) e.change_id from changefeed.event e with (readcommittedlock, readpast)
                                  where e.trigger_id = t.trigger_id and e.state = 'e') d),
       (select datediff_big(millisecond, min(e.due_at), sysutcdatetime()) from changefeed.event e with (readcommittedlock, readpast)
        where e.trigger_id = t.trigger_id and e.due_at <= sysutcdatetime())
from changefeed.event_trigger t
where t.dropped_at is null
order by t.name
