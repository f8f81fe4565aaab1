select t.name::text,
       (select count(*) from (select from changefeed.event e
                              where e.trigger_id = t.trigger_id and e.due_at is not null
                              limit 100000) p),
       (select count(*) from changefeed.event e
        where e.trigger_id = t.trigger_id and e.due_at > (select clock_timestamp())
          and e.locked_by is not null),
       (select count(*) from (select from changefeed.event e
                              where e.trigger_id = t.trigger_id and e.state = 'e'
                              limit 100000) d),
       (select (extract(epoch from clock_timestamp() - min(e.due_at)) * 1000)::bigint
        from changefeed.event e
        where e.trigger_id = t.trigger_id and e.due_at <= (select clock_timestamp()))
from changefeed.event_trigger t
where t.dropped_at is null
order by t.name
