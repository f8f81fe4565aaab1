-- Removes a batch of finished events that are old enough, with their attempts. What a consumer of
-- the trigger's feed has not read yet is kept: nothing at or after the oldest unread change goes,
-- be it committed or not.
declare @trigger_id int = @P1, @limit int = @P4;
declare @before datetime2(6) = dateadd(millisecond, -@P3, dateadd(second, -@P2, sysutcdatetime()));
declare @kept table (trigger_id int not null primary key, from_change bigint null);
declare @doomed table (change_id bigint not null primary key);
declare @attempts bigint, @events bigint;
insert into @kept (trigger_id, from_change)
select t.trigger_id, min(u.change_id)
from changefeed.event_trigger t
join (select c.feed_id, c.shard,
             min(case when len(c.[cursor]) <= 18 then try_convert(bigint, c.[cursor]) end) as [read]
      from changefeed.consumer c group by c.feed_id, c.shard) c on c.feed_id = t.feed_id
cross apply (select min(n.change_id) as change_id from changefeed.change n with (readuncommitted)
             where n.feed_id = c.feed_id and n.shard = c.shard
               and n.change_sequence_number > isnull(c.[read], 0)
             union all
             select min(n.change_id) from changefeed.change n with (readuncommitted)
             where n.feed_id = c.feed_id and n.shard = c.shard
               and n.change_sequence_number is null) u
group by t.trigger_id;
begin transaction;
insert into @doomed (change_id)
select top (@limit) e.change_id
from changefeed.event_trigger t
left join @kept k on k.trigger_id = t.trigger_id
cross apply (select top (@limit) e.change_id
             from changefeed.event e with (updlock, readpast, rowlock)
             where e.trigger_id = t.trigger_id and e.state <> 'p' and (@P5 = 1 or e.state <> 'e')
               and e.created_at < @before
               and (k.from_change is null or e.change_id < k.from_change)
             order by e.created_at) e
where @trigger_id < 0 or t.trigger_id = @trigger_id;
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
