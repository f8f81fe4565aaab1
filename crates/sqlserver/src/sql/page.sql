-- A page, and then the ends of the shard. In this order, because a trim in between then shows as
-- an expired cursor and never as a silent jump.
-- While a backfill is under way, a reader of backfilled numbers stops at its frontier instead of
-- jumping over what is still to come. One that has begun since we asked for it is told with the ends: the
-- page may have some of its numbers, and must not go on behind the start either.
-- At least one change, and then as many as fit into a number of bytes; `found` says how many there were before
-- that cut, which are up to one more than was asked for.
declare @feed_id smallint = @P1, @shard smallint = @P2, @after bigint = @P3, @limit int = @P4, @bytes int = @P5;
declare @upto bigint = 9223372036854775807, @begun int;
select @begun = count(*) from changefeed.backfill b where b.feed_id = @feed_id;
select @upto = isnull(s.start, s.last_change_sequence_number)
from changefeed.shard s
where s.feed_id = @feed_id and s.shard = @shard
  and @after < isnull(s.start, s.last_change_sequence_number)
  and exists (select 1 from changefeed.backfill b
              where b.feed_id = @feed_id and b.finished_at is null);
-- Nothing comes any more if the shard is closed and everything has its number, also what was put there by hand before and
-- is not committed. In this order: once that is so it stays so, and the end that is read after it is the last one.
declare @closed bit = 0;
select @closed = s.closed
from changefeed.shard s
where s.feed_id = @feed_id and s.shard = @shard and s.closed = 1
  and not exists (select 1 from changefeed.change c with (readuncommitted)
                  where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null);
select q.change_sequence_number, q.change_id, q.found{names}
from (
select f.*, count(*) over () as found,
       row_number() over (order by f.change_sequence_number) as place,
       sum(convert(bigint, {bytes})) over (order by f.change_sequence_number rows unbounded preceding) as bytes
from (
select p.change_sequence_number, p.change_id{row}
from (select top (@limit + 1) c.change_sequence_number, c.change_id
      from changefeed.change c
      where c.feed_id = @feed_id and c.shard = @shard
        and c.change_sequence_number > @after and c.change_sequence_number <= @upto
        -- Or the server may not use the index of what has a number.
        and c.change_sequence_number is not null
      order by c.change_sequence_number) p
{join}
) f
) q
where q.place = 1 or q.bytes <= @bytes
order by q.change_sequence_number
option (optimize for (@after unknown, @limit = 1000));
select max(s.last_change_sequence_number), max(s.trimmed_to),
       max(isnull(s.start, s.last_change_sequence_number)),
       (select count(*) from changefeed.backfill b where b.feed_id = @feed_id) - @begun,
       (select top (1) i.incarnation from changefeed.incarnation i order by i.number desc), @closed
from changefeed.shard s where s.feed_id = @feed_id and s.shard = @shard
