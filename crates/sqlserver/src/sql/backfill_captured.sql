insert into changefeed.change_row (feed_id, shard, [key])
output inserted.change_id, inserted.shard into @ids (change_id, shard)
select @feed_id, p.shard, p.[key] from @picked p order by p.place;
