-- As many versions as there are rows that may get another one.
update changefeed.watched_table
set last_version = last_version + (select count(*) from @newer) where table_id = {table_id};
select @base = t.last_version - (select count(*) from @newer)
from changefeed.watched_table t where t.table_id = {table_id};
