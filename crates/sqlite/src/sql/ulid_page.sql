select changefeed_row.{ulid}, changefeed_row.*
  from {table} as changefeed_row
 where changefeed_row.{shard} = ?1 and changefeed_row.{ulid} > ?2
 order by changefeed_row.{ulid}
 limit ?3
