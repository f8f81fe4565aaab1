-- What was not delivered is archived. An attempt that is under way will find itself late.
with archived as (
    update changefeed.event e
    set state = 'a', due_at = null, locked_by = null, generation = e.generation + 1
    where e.trigger_id = $1 and e.due_at is not null
)
update changefeed.event_trigger t
set dropped_at = clock_timestamp(), updated_at = clock_timestamp()
where t.trigger_id = $1
