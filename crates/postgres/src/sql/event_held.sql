-- What an owner ($1) holds, if its lease ends within so many milliseconds ($2) of now, before or after:
-- a bound, because all that is pending is in the index.
select e.change_id, e.generation::bigint
from changefeed.event_trigger t
cross join lateral (
    select e.change_id, e.generation
    from changefeed.event e
    where e.trigger_id = t.trigger_id
      and e.due_at > (select clock_timestamp() - $2 * interval '1 millisecond')
      and e.due_at <= (select clock_timestamp() + $2 * interval '1 millisecond')
      and e.locked_by = $1
) e
