-- Makes one event pending again, unless somebody holds it at this moment.
with found as (
    select e.change_id, e.locked_by is not null and e.due_at > clock_timestamp() as held,
           t.dropped_at is not null as dropped
    from changefeed.event e
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id
    where e.change_id = $1 and e.bits & 1152921504606846975 = $2
),
done as (
    update changefeed.event e
    set state = 'p', due_at = changefeed.noted_time(), tries = 0, cut_off = 0,
        generation = e.generation + 1, locked_by = null,
        -- It may be from before its trigger kept an order.
        order_key = coalesce(e.order_key, e.change_id)
    from found f
    -- One whose lease has run out is due in any case, and must be counted as cut off.
    where e.change_id = f.change_id and not f.dropped and e.locked_by is null
      -- It waits for its first attempt already: this may be a call that is repeated.
      and not (e.state = 'p' and e.tries = 0 and e.due_at <= clock_timestamp())
    returning 1
)
select not f.held or exists (select from done), f.dropped from found f
