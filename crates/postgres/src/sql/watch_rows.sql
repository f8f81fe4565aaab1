-- The rows of a batch, as they are now. One that is gone by now is a delete already. A subquery per
-- row instead of a join, for the reason told in watch_move_function.sql.
select b.version, case when b.item is null then 2 else b.operation end,
       coalesce(b.item, b.key_item)
from (
    select q._changefeed_change_version as version, q._changefeed_operation as operation,
           case when q._changefeed_operation < 2 then
               (select row_to_json(changefeed_row)::text from {table} changefeed_row
                where {row_key}) end as item,
           (select row_to_json(changefeed_key)::text
            from (select {key_item}) changefeed_key) as key_item
    from changefeed.{leases} q
    where q._changefeed_change_version between {from} and {to}
      and q._changefeed_lease_generation = {generation} and q._changefeed_parked_time is null
) b
order by b.version
