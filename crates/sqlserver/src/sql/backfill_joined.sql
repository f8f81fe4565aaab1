-- Those that the application has published already are passed over. A row and its change are
-- committed together, so both are seen or neither is.
insert into @ids (change_id, shard)
select p.change_id, p.shard from @picked p
where not exists (select 1 from changefeed.shard s
                  join changefeed.change c on c.feed_id = s.feed_id and c.shard = s.shard
                      and c.change_id = p.change_id
                  where s.feed_id = @feed_id);
