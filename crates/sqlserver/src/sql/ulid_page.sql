-- A page of a feed that is ordered by ULIDs.
-- Writers of a shard commit in the order of their ULIDs, so whoever sees one moment misses nothing.
-- A statement does with READ_COMMITTED_SNAPSHOT. Without, a scan may have passed the place of a row
-- that is committed meanwhile, and then meet one that was written after it: so the shard's state is
-- read first, which commits together with the rows, and nothing beyond it is taken.
-- Cut by bytes as in page.sql.
declare @shard int = @P2, @after binary(16) = @P3, @limit int = @P4, @bytes int = @P5;
declare @upto binary(16) = 0xffffffffffffffffffffffffffffffff;
if exists (select 1 from sys.databases d where d.name = db_name() and d.is_read_committed_snapshot_on = 0) --@sqlserver
begin --@sqlserver
    set @upto = null; --@sqlserver
    select @upto = s.ulid_high + convert(binary(8), s.ulid_low) from changefeed.shard_ulid s --@sqlserver
    where s.feed_id = @P1 and s.shard_id = @shard; --@sqlserver
    -- Before the first of its transactions there is none: then what is there when whoever is writing has ended.
    if @upto is null --@sqlserver
        select top (1) @upto = t.{ulid} from {table} t where t.{shard} = @shard order by t.{ulid} desc; --@sqlserver
end; --@sqlserver
select q.ulid, q.new, q.found
from (
select f.ulid, f.new, count(*) over () as found, row_number() over (order by f.ulid) as place,
       sum(convert(bigint, isnull(datalength(f.new), 0) / 2)) over (order by f.ulid rows unbounded preceding) as bytes
from (select top (@limit + 1) t.{ulid} as ulid, {row} as new
      from {table} t
      where t.{shard} = @shard and t.{ulid} > @after and t.{ulid} <= @upto
      order by t.{ulid}) f
) q
where q.place = 1 or q.bytes <= @bytes
order by q.ulid
option (optimize for (@after unknown, @upto unknown, @limit = 1000));
select top (1) i.incarnation from changefeed.incarnation i order by i.number desc
