-- Event triggers that cannot be locked right now, which is what every claim of their events tries.
select format('trigger %s', t.name), 'it is locked, so nobody delivers its events'
from changefeed.event_trigger t
where t.dropped_at is null and t.trigger_id not in (
    select l.trigger_id from (
        select s.trigger_id from changefeed.event_trigger s for no key update skip locked) l)
order by t.name
limit 100
