-- Removes some of what a feed holds, so that removing the feed itself has little left to lock. Returns
-- how many changes are gone; none when there is nothing more, or when the feed may not be dropped.
declare @feed_id smallint = @P1, @batch int = @P2;
declare @gone table (shard smallint not null, change_id bigint not null, primary key (shard, change_id));
begin transaction;
if not exists (select 1 from changefeed.event_trigger t where t.feed_id = @feed_id and t.dropped_at is null)
begin
    -- A reader must see that these are gone, if whoever drops the feed never comes to its end.
    update s set trimmed_to = s.last_change_sequence_number
    from changefeed.shard s with (forceseek)
    where s.feed_id = @feed_id and s.trimmed_to < s.last_change_sequence_number;
    insert into @gone (shard, change_id)
    select top (@batch) c.shard, c.change_id
    from changefeed.change c
    join changefeed.shard s on s.feed_id = c.feed_id and s.shard = c.shard
    where c.feed_id = @feed_id and c.change_sequence_number <= s.trimmed_to
      and c.change_sequence_number is not null;
    if exists (select 1 from changefeed.feed_source s where s.feed_id = @feed_id and s.kind = 'captured')
        delete r from @gone g
        join changefeed.change_row r with (forceseek) on r.change_id = g.change_id and r.feed_id = @feed_id
        option (loop join, force order) --@sqlserver
        ;
    delete c from @gone g
    join changefeed.change c with (forceseek) on c.shard = g.shard and c.change_id = g.change_id
    where c.feed_id = @feed_id
    option (loop join, force order) --@sqlserver
    ;
end;
commit transaction;
select convert(int, count(*)) from @gone
