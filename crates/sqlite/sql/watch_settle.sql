-- Of the rows noted before, those that have left are deleted.
  insert into {log} (op, {keys})
  select 2, {staged_key} from changefeed_staged s
   where s.feed_id = {stage}
     and not exists (select 1 from {table} as changefeed_row where {same_place});
