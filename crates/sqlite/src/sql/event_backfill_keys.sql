select {identity}
  from {table} as changefeed_row
 {resume}
 order by {identity}
 limit {batch}
