-- Every blob is greater than the empty one, and everything that is not a blob is less.
select changefeed_row.{ulid}
  from {table} as changefeed_row
 where changefeed_row.{shard} = ?1 and changefeed_row.{ulid} > x''
 order by changefeed_row.{ulid} desc
 limit 1
