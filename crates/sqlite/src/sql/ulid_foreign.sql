-- A value in the ULID column that is not a blob: it is less than every blob, so that no page would
-- ever show it.
select typeof(changefeed_row.{ulid})
  from {table} as changefeed_row
 where changefeed_row.{shard} = ?1 and changefeed_row.{ulid} < x''
 limit 1
