-- Makes a batch of events pending again that are not waiting anyway, and notes with the key of the request how
-- far that was, and how many; 0 is the end. If somebody else with the same key was faster, nothing happens.
with here as materialized (
    select 1 from changefeed.event_request r
    where r.key = {key} and r.change_id = {reached}
    for update
),
picked as materialized (
    select e.ctid as place, e.change_id from changefeed.event e
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id and t.dropped_at is null
    where exists (select from here) and e.state <> 'p' and {matching}
    order by e.change_id desc
    limit {limit}
    for update of e skip locked
),
done as (
    update changefeed.event e
    set state = 'p', due_at = (select changefeed.noted_time()), tries = 0, cut_off = 0, superseded_by = null,
        generation = e.generation + 1, locked_by = null, order_key = coalesce(e.order_key, e.change_id)
    where e.ctid = any (array(select p.place from picked p))
    returning 1
)
update changefeed.event_request r
set change_id = coalesce((select min(p.change_id) from picked p), 0),
    bits = r.bits + (select count(*) from done)
where r.key = {key} and r.change_id = {reached} and exists (select from here)
