insert into changefeed.change_row (shard, [key])
output inserted.change_id, inserted.shard into @ids (change_id, shard)
select p.shard, p.[key] from @picked p order by p.place;
