-- Changes that no sweep will number: where rows are not versioned and snapshots are not allowed, a sweep takes ids
-- below the next of the sequence only. Uncommitted ones are counted too, so that nobody is waited for. The sequence
-- is asked again after the changes: by then it has passed whatever was drawn from it.
declare @above table (feed_id smallint not null, shard smallint not null, change_id bigint not null);
insert into @above (feed_id, shard, change_id)
select c.feed_id, c.shard, c.change_id
from changefeed.change c with (readuncommitted)
join sys.databases d on d.name = db_name() and d.is_read_committed_snapshot_on = 0 and d.snapshot_isolation_state <> 1
join sys.sequences q on q.object_id = object_id(N'changefeed.change_id')
where c.change_sequence_number is null and c.change_id > convert(bigint, q.current_value);
select convert(nvarchar(100), f.name), a.shard, count_big(*), min(a.change_id)
from @above a
join changefeed.feed f on f.feed_id = a.feed_id
join sys.sequences q on q.object_id = object_id(N'changefeed.change_id')
where a.change_id > convert(bigint, q.current_value)
group by f.name, a.shard
order by f.name, a.shard
