-- Removes a batch of finished events that are old enough, with their attempts. What a consumer of
-- the trigger's feed has not read yet is kept, be its change committed or not. Each event is asked for by its key: what
-- is unread may be long, and so may be what was read. The oldest are looked at, and not without end: a
-- consumer that stands still keeps what comes after it too.
declare @trigger_id int = @P1, @limit int = @P4;
declare @before datetime2(6) = dateadd(millisecond, -@P3, dateadd(second, -@P2, sysutcdatetime()));
declare @read table (feed_id smallint not null, shard smallint not null, upto bigint not null,
                     primary key (feed_id, shard));
declare @doomed table (change_id bigint not null primary key);
declare @attempts bigint, @events bigint;
insert into @read (feed_id, shard, upto)
select c.feed_id, c.shard, min(isnull(case when len(c.[cursor]) <= 18 then try_convert(bigint, c.[cursor]) end, 0))
from changefeed.consumer c group by c.feed_id, c.shard;
begin transaction;
insert into @doomed (change_id)
select top (@limit) e.change_id
from changefeed.event_trigger t
cross apply (select top (convert(bigint, @limit) * 10) e.change_id, e.feed_id, e.shard
             from changefeed.event e with (readcommittedlock, readpast, rowlock)
             where e.trigger_id = t.trigger_id and e.state <> 'p' and (@P5 = 1 or e.state <> 'e')
               and e.created_at < @before
             order by e.created_at) e
where (@trigger_id < 0 or t.trigger_id = @trigger_id)
  and not exists (select 1 from @read r
                  join changefeed.change n with (readuncommitted, forceseek)
                    on n.feed_id = r.feed_id and n.shard = r.shard and n.change_id = e.change_id
                  where r.feed_id = e.feed_id and r.shard = e.shard
                    and (n.change_sequence_number is null or n.change_sequence_number > r.upto));
-- Somebody may have asked for one of them again.
delete e from @doomed d
join changefeed.event e with (forceseek) on e.change_id = d.change_id
where e.state <> 'p'
option (loop join, force order) --@sqlserver
;
set @events = @@rowcount;
delete a from @doomed d
join changefeed.event_attempt a with (forceseek) on a.change_id = d.change_id
where not exists (select 1 from changefeed.event e with (forceseek) where e.change_id = d.change_id)
option (loop join, force order) --@sqlserver
;
set @attempts = @@rowcount;
commit transaction;
select @events, @attempts, count_big(*) from @doomed
