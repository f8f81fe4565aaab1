-- The events that were taken, in order, as long as they are ours and until there is enough to do:
-- at least one, and then as many as fit into a number of bytes ($3), as they are stored.
select p.*
from (
    select e.change_id, e.trigger_id, e.generation::bigint, e.tries::integer, e.cut_off::integer,
           e.op::text, e.old, e.new, e.session_variables, e.trace_context,
           to_char(e.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created_at,
           t.name::text, t.schema_name, t.table_name, e.bits, h.place,
           sum(coalesce(pg_column_size(e.old), 0) + coalesce(pg_column_size(e.new), 0))
               over (order by h.place) as bytes
    from unnest($1::bigint[], $2::integer[]) with ordinality h(change_id, generation, place)
    cross join lateral (
        select e.* from changefeed.event e
        where e.change_id = h.change_id and e.generation = h.generation and e.locked_by is not null
        offset 0
    ) e
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id
) p
where p.place = 1 or p.bytes <= $3
order by p.place
