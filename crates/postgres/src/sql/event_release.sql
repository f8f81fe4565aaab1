-- Nothing was sent, so no attempt is counted.
update changefeed.event e
set due_at = clock_timestamp(), locked_by = null, tries = e.tries - 1
from unnest($1::bigint[], $2::integer[]) held(change_id, generation)
where e.change_id = held.change_id and e.generation = held.generation and e.locked_by is not null
