insert into changefeed.change_row (feed_id, shard, op, [key], [new])
output inserted.change_id, inserted.shard into @ids (change_id, shard)
select @feed_id, p.shard, 'B', p.[key], p.image from @picked p {here}order by p.place;
