-- Loads the existing rows behind the bookmark as inserts, and moves the bookmark.
insert or ignore into {leases} ({keys}, _changefeed_change_version, _changefeed_operation)
select {keys}, (select version from changefeed_watch_counter) + row_number() over (order by {keys}), 0
  from (select {keys} from {table} where {behind} order by {keys} limit {chunk});
update changefeed_watch_counter set version = version + {chunk};
insert into {bookmark} ({keys})
select {keys} from (select {keys} from {table} where {behind} order by {keys} limit {chunk})
 order by {keys} desc limit 1;
