-- Removes a batch of old attempts of events that are finished. Those of dead letters say what went wrong, and stay.
with before as materialized (
    select clock_timestamp() - $2 * interval '1 second' as moment
),
doomed as materialized (
    select a.ctid as place
    from changefeed.event_attempt a
    join changefeed.event e on e.change_id = a.change_id
    where ($1::integer is null or a.trigger_id = $1) and e.state not in ('p', 'e')
      and a.created_at < (select b.moment from before b)
    order by a.change_id, a.generation
    limit $3
),
attempts as (
    delete from changefeed.event_attempt a where a.ctid = any (array(select d.place from doomed d))
    returning 1
)
select count(*) from attempts
