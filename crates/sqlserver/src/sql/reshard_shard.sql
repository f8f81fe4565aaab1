-- A shard of the next generation, like the first of those before (@P2 to @P3). Consumers of those are registered at its
-- beginning: what they have not read is kept for them.
insert into changefeed.shard (feed_id, shard, sweep_group, longpoll, last_change_sequence_number, generation)
select s.feed_id, @P4, s.sweep_group, s.longpoll, isnull(s.start, s.last_change_sequence_number), s.generation + 1
from changefeed.shard s
where s.feed_id = @P1 and s.shard = @P2;
insert into changefeed.consumer (name, feed_id, shard, [cursor])
select distinct c.name, s.feed_id, s.shard, convert(varchar(26), s.last_change_sequence_number)
from changefeed.consumer c
join changefeed.shard s on s.feed_id = c.feed_id and s.shard = @P4
where c.feed_id = @P1 and c.shard between @P2 and @P3;
