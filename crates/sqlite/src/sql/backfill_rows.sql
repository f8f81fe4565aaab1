select {shard}, {published}, {image}, {key}
  from {table} as changefeed_row
 where {condition} {resume}
 {group}
 order by {key}
 limit {batch}
