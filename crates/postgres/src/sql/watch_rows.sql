-- The rows of a batch, as they are now. One that is gone by now is a delete already; one that is
-- there is no delete, unless its newer change waits to be handed over afterwards. A subquery per row
-- instead of a join, for the reason told in watch_move_function.sql.
--
-- All of them are read before anything is sent, and sent when the table is not locked any more: a
-- process that was stopped in the middle of it would keep whoever alters the table waiting, and
-- everybody behind them.
declare changefeed_rows no scroll cursor with hold for
with found as materialized (
    select q._changefeed_change_version as version, coalesce(q._changefeed_bits, 0) as bits,
           q._changefeed_operation as operation,
           q._changefeed_newer_operation as newer, q._changefeed_columns as columns,
           '[' || array_to_string(q._changefeed_before, ',') || ']' as before,
           (select (select row_to_json(changefeed_item.*)::text
                    from (select {row_columns}) changefeed_item)
            from {table} changefeed_row
            where changefeed.same_row(changefeed_row.*, $1) and {row_key} limit 1) as item,
           (select row_to_json(changefeed_key.*)::text
            from (select {key_item}) changefeed_key) as key_item
    from changefeed.{leases} q
    where q._changefeed_change_version between {from} and {to}
      and q._changefeed_lease_generation = {generation} and q._changefeed_parked_time is null
),
-- One row at least, and then as many as fit into a number of bytes.
measured as (
    select f.*, row_number() over (order by f.version) as place,
           sum(octet_length(coalesce(f.item, f.key_item))) over (order by f.version) as bytes
    from found f
)
select b.version, b.bits,
       case when b.item is null or b.operation >= 2 and b.newer is not null then 2
            when b.operation < 2 then b.operation
            else 3 - b.operation end,
       case when b.operation >= 2 and b.newer is not null then b.key_item
            else coalesce(b.item, b.key_item) end,
       {columns}, b.before
from measured b
where b.place = 1 or b.bytes <= {bytes}
order by b.version
