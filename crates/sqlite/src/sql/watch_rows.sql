-- The rows of a batch, as they are now. One that is gone by now is a delete already.
select q._changefeed_change_version,
       case when {gone} then 2 else q._changefeed_operation end,
       case when q._changefeed_operation = 1 then q._changefeed_columns end,
       coalesce(q._changefeed_bits, 0), q._changefeed_before,
       {own_key}, changefeed_row.*
  from {leases} q left join {table} as changefeed_row on {row_key}
 where {held}
 order by q._changefeed_change_version
