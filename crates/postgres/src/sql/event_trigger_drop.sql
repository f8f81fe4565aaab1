-- What was not delivered is archived. An attempt that is under way will find itself late. The rows
-- are locked in the order in which everybody locks them.
with waiting as materialized (
    select e.ctid as place
    from changefeed.event e
    where e.trigger_id = $1 and e.due_at is not null
    order by e.change_id
    for update
),
archived as (
    update changefeed.event e
    set state = 'a', due_at = null, locked_by = null, generation = e.generation + 1
    where e.ctid = any (array(select w.place from waiting w))
)
update changefeed.event_trigger t
set dropped_at = clock_timestamp(), updated_at = clock_timestamp()
where t.trigger_id = $1
