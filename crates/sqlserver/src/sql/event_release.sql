-- Nothing was sent, so no attempt is counted.
declare @held table (change_id bigint not null primary key, generation int not null);
insert into @held (change_id, generation)
select h.change_id, max(h.generation) from openjson(@P1) with (change_id bigint, generation int) h
group by h.change_id;
update changefeed.event
set due_at = sysutcdatetime(), locked_by = null, tries = tries - 1
where locked_by is not null
  and exists (select 1 from @held h where h.change_id = changefeed.event.change_id
                and h.generation = changefeed.event.generation)
