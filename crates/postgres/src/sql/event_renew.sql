update changefeed.event e
set due_at = clock_timestamp() + $3 * interval '1 millisecond'
from unnest($1::bigint[], $2::integer[]) held(change_id, generation)
where e.change_id = held.change_id and e.generation = held.generation and e.locked_by is not null
returning e.change_id, e.generation::bigint
