-- The rows of a batch, as they are now. One that is gone by now is a delete already; one that is there
-- is no delete, unless its newer change waits to be handed over afterwards.
--
-- All of them are read before anything is sent: a process that was stopped in the middle of it would
-- keep the lock on a row, and with it whoever wants to write to it.
{versioned}
declare @found table (version bigint not null primary key, bits bigint not null, operation smallint not null, newer smallint null,
                      [columns] varchar(max) null, item nvarchar(max) null, key_item nvarchar(max) not null);
insert into @found (version, bits, operation, newer, [columns], item, key_item)
select q._changefeed_change_version, isnull(q._changefeed_bits, 0), q._changefeed_operation, q._changefeed_newer_operation, q._changefeed_columns,
       (select top (1) {row} from {table} t where {same_key}), {key}
from changefeed.{leases} q
where {held};
{unversioned}
select f.version,
       convert(int, case when f.item is null or (f.operation >= 2 and f.newer is not null) then 2
                         when f.operation < 2 then f.operation
                         else 3 - f.operation end),
       case when f.operation >= 2 and f.newer is not null then f.key_item else isnull(f.item, f.key_item) end,
       f.[columns], {signature}, f.bits
from (select m.*, row_number() over (order by m.version) as place,
             sum(datalength(isnull(m.item, m.key_item))) over (order by m.version rows unbounded preceding) as bytes
      from @found m) f
-- One row at least, and then as many as fit into a number of bytes.
where f.place = 1 or f.bytes <= {bytes}
order by f.version
