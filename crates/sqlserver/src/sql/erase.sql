-- Empties what was kept of a row of a table: @P2 has the values of its key in order, @P3 the same with their names.
-- What there is to empty is looked for with nothing locked: a search stops at rows that somebody has written and not
-- committed.
set nocount on;
declare @table_id int = @P1, @values nvarchar(max) = @P2, @named nvarchar(max) = @P3, @changes int, @events int;
declare @kept table (change_id bigint not null primary key);
declare @matching table (change_id bigint not null primary key, pending bit not null);
insert into @kept (change_id)
select r.change_id
from changefeed.change_row r
join changefeed.feed_source f on f.feed_id = r.feed_id and f.kind = 'captured' and f.table_id = @table_id
where (r.[old] is not null or r.[new] is not null)
  and not exists (select 1 from openjson(@values) w
                  where not exists (select 1 from openjson(r.[key]) k
                                    where k.[key] = w.[key] and k.value = w.value collate Latin1_General_BIN2));
insert into @matching (change_id, pending)
select e.change_id, case when e.state = 'p' then 1 else 0 end
from changefeed.event e
join changefeed.event_trigger t on t.trigger_id = e.trigger_id and t.table_id = @table_id
where exists (
    select 1 from (values (e.[old]), (e.[new])) v(image)
    where v.image is not null
      and not exists (select 1 from openjson(@named) with (name nvarchar(128) '$.name', value nvarchar(max) '$.value') w
                      where not exists (select 1 from openjson(v.image) k
                                        where k.[key] = w.name collate Latin1_General_BIN2
                                          and k.value = w.value collate Latin1_General_BIN2)));
begin transaction;
update r
set [old] = case when r.[old] is not null then N'{}' end, [new] = case when r.[new] is not null then N'{}' end
from @kept k join changefeed.change_row r with (forceseek) on r.change_id = k.change_id
option (loop join, force order) --@sqlserver
;
set @changes = @@rowcount;
update a set request = null, response = null, error = null
from @matching m join changefeed.event_attempt a with (forceseek) on a.change_id = m.change_id
where m.pending = 0
option (loop join, force order) --@sqlserver
;
update e
set [old] = case when e.[old] is not null then N'{}' end, [new] = case when e.[new] is not null then N'{}' end,
    session_variables = null, trace_context = null
from @matching m join changefeed.event e with (forceseek) on e.change_id = m.change_id
where m.pending = 0 and e.state <> 'p'
option (loop join, force order) --@sqlserver
;
set @events = @@rowcount;
commit transaction;
select @changes, @events, (select count(*) from @matching m where m.pending = 1)
