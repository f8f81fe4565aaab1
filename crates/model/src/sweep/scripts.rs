//! The shipped SQL that the model executes.

use crate::script::{Line, Script, beside, step, with};

/// What a model of the sweep is made of.
#[derive(Debug, Clone)]
pub struct Scripts {
    /// `changefeed.sweep_shard`.
    pub sweep: Script,
    /// `trim.sql`.
    pub trim: Script,
    /// `page.sql`.
    pub page: Script,
    /// `backfill.sql`, for a captured feed.
    pub backfill: Script,
    /// `changefeed.change_insert`, the trigger that refuses numbers.
    pub refusal: Script,
    /// The indexes of `changefeed.change`.
    pub index: Script,
    /// Our reader leaves what comes after a gap for the next page (`keep_contiguous` in read.rs).
    pub keeps_contiguous: bool,
    /// The rows of a sweep get their numbers from the last one to the first.
    pub backward: bool,
}

impl Scripts {
    /// As they are shipped.
    pub fn shipped() -> Self {
        Scripts {
            sweep: sweep_shard(),
            trim: trim(),
            page: page(),
            backfill: backfill(),
            refusal: refusal(),
            index: Script::new("indexes", index_lines()),
            keeps_contiguous: true,
            backward: false,
        }
    }
}

/// `changefeed.sweep_shard` of `migrations/0001/sweep.sql`.
pub fn sweep_shard() -> Script {
    let marks = "the age of numbers, which orders nothing";
    Script::new(
        "changefeed.sweep_shard",
        [
            with("set xact_abort on"),
            with("set transaction isolation level read committed"),
            with(
                "select @versioned = d.is_read_committed_snapshot_on, @snapshots = case when d.is_read_committed_snapshot_on = 0 and d.snapshot_isolation_state = 1 and @@trancount = 0 then 1 else 0 end from sys.databases where d.name = db_name()",
            ),
            with("if @versioned = 0 and @snapshots = 0"),
            step("bound", "  set @bound = next value for change_id"),
            with("while 1 = 1"),
            with("  if @snapshots = 1"),
            with("    set transaction isolation level snapshot"),
            step("look", "    begin transaction"),
            step(
                "look at the end",
                "    select @seen = s.last_change_sequence_number from shard where s.feed_id = @feed_id and s.shard = @shard",
            ),
            step(
                "look at changes",
                "    insert @pending select top(@batch) from change where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null order by c.change_id",
            ),
            step("looked", "    commit transaction"),
            with("    set transaction isolation level read committed"),
            step("begin", "  begin transaction"),
            step(
                "lock",
                "  update shard(forceseek,updlock) set last_sweep_time = last_sweep_time output inserted.last_change_sequence_number, inserted.last_sweep_time into @state where feed_id = @feed_id and shard = @shard",
            ),
            with("  if @last is null"),
            with("    commit transaction"),
            with("    return"),
            step("compare", "  if @snapshots = 0 or @last = @seen"),
            with("    break"),
            with("  commit transaction"),
            with("if @versioned = 1"),
            step(
                "collect",
                "  insert @pending select top(@batch) from change where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null order by c.change_id",
            ),
            with("else"),
            with("  if @snapshots = 0"),
            step(
                "collect by locks",
                "    insert @pending select top(@batch) from change(index ix_needs_seqnum,readcommittedlock,readpast) where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null and c.change_id < @bound order by c.change_id",
            ),
            with("if @change_count = 0"),
            with("  commit transaction"),
            with("  return"),
            step(
                "number",
                "update change(forceseek) set change_sequence_number = @last + p.number from @pending where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null",
            ),
            with("if @@rowcount <> @change_count"),
            with("  throw 55202"),
            beside("set @now = sysutcdatetime()", marks),
            step(
                "end",
                "update shard(forceseek) set last_change_sequence_number = @last + @change_count, last_sweep_time = @now, start = isnull(s.start, @last) where s.feed_id = @feed_id and s.shard = @shard and s.last_change_sequence_number = @last",
            ),
            with("if @@rowcount <> 1"),
            with("  throw 55201"),
            beside(
                "select @mark = min(m.swept_at) from progress (top(2) where p.feed_id = @feed_id and p.shard = @shard)",
                marks,
            ),
            beside("if @mark > dateadd(second, - 1, @now)", marks),
            beside(
                "  update progress set last_change_sequence_number = @last + @change_count, swept_at = @now where feed_id = @feed_id and shard = @shard and last_change_sequence_number = @last",
                marks,
            ),
            beside(
                "if @mark is null or @mark <= dateadd(second, - 1, @now) or @@rowcount = 0",
                marks,
            ),
            beside("  insert progress values", marks),
            step("commit", "commit transaction"),
        ],
    )
}

/// `trim.sql`.
pub fn trim() -> Script {
    let links = "rows of their own, by ids that nobody else has";
    let cap = "what is so old that no consumer holds it back, of which there is nothing here";
    Script::new(
        "trim.sql",
        [
            beside(
                "set @before = dateadd(millisecond, - @p4, dateadd(second, - @p3, sysutcdatetime()))",
                "all numbers are old enough",
            ),
            beside(
                "set @unread_before = dateadd(millisecond, - @p7, dateadd(second, - @p6, sysutcdatetime()))",
                cap,
            ),
            step(
                "old",
                "select top(1) @old = p.last_change_sequence_number from progress where p.feed_id = @feed_id and p.shard = @shard and p.swept_at <= @before order by p.swept_at desc, p.last_change_sequence_number desc",
            ),
            beside(
                "select top(1) @unread = p.last_change_sequence_number from progress where p.feed_id = @feed_id and p.shard = @shard and p.swept_at <= @unread_before order by p.swept_at desc, p.last_change_sequence_number desc",
                cap,
            ),
            step("begin", "begin transaction"),
            step(
                "lock",
                "update shard(forceseek,updlock) set trimmed_to = s.trimmed_to where s.feed_id = @feed_id and s.shard = @shard",
            ),
            step(
                "backfill",
                "if exists(select 1 from backfill b where b.feed_id = @feed_id and(b.finished_at is null or b.finished_at > @before))",
            ),
            with("  …"),
            beside(
                "if exists(select 1 from backfill b where b.feed_id = @feed_id and(b.finished_at is null or b.finished_at > @unread_before))",
                cap,
            ),
            beside("  …", cap),
            with("try"),
            step(
                "consumers",
                "  select top(1) @read = convert(bigint, c.[cursor]), @slowest = c.name from consumer(nowait) where c.feed_id = @feed_id and c.shard = @shard order by convert(bigint, c.[cursor]), c.name",
            ),
            with("catch"),
            with("  if error_number() <> 1222"),
            with("    throw"),
            with("  rollback transaction"),
            with("  return"),
            step(
                "choose",
                "insert @gone select top(@left) from change where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number <= @upto and c.change_sequence_number is not null order by c.change_sequence_number",
            ),
            with("if @highest is not null"),
            step(
                "delete",
                "  delete change(forceseek) from @gone where c.feed_id = @feed_id and c.shard = @shard",
            ),
            beside(
                "  if exists(select 1 from feed_source s where s.feed_id = @feed_id and s.kind = 'captured')",
                links,
            ),
            beside("    delete change_row(forceseek) from @gone", links),
            step(
                "mark",
                "  update shard(forceseek) set trimmed_to = case when s.trimmed_to < @highest then @highest else s.trimmed_to end where s.feed_id = @feed_id and s.shard = @shard",
            ),
            beside(
                "  delete progress where feed_id = @feed_id and shard = @shard and last_change_sequence_number < @highest",
                "the age of numbers, which orders nothing",
            ),
            step("commit", "commit transaction"),
        ],
    )
}

/// `page.sql`, as it is for a feed that knows no rows.
pub fn page() -> Script {
    Script::new(
        "page.sql",
        [
            step(
                "begun",
                "select @begun = count(*) from backfill where b.feed_id = @feed_id",
            ),
            step(
                "upto",
                "select @upto = isnull(s.start, s.last_change_sequence_number) from shard where s.feed_id = @feed_id and s.shard = @shard and @after < isnull(s.start, s.last_change_sequence_number) and exists(select 1 from backfill b where b.feed_id = @feed_id and b.finished_at is null)",
            ),
            beside(
                "select @closed = s.closed from shard where s.feed_id = @feed_id and s.shard = @shard and s.closed = 1 and not exists(select 1 from change c with(readuncommitted) where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null)",
                "the model has no closed shard; what this reads stays as it is once it is true, and `ends` is read after it",
            ),
            step(
                "page",
                "select from change (top(@limit + 1) where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number > @after and c.change_sequence_number <= @upto and c.change_sequence_number is not null) where q.place = 1 or q.bytes <= @bytes order by q.change_sequence_number",
            ),
            step(
                "ends",
                "select (select count(*) from backfill b where b.feed_id = @feed_id) - @begun, (select top(1) i.incarnation from incarnation i order by i.number desc) from shard where s.feed_id = @feed_id and s.shard = @shard",
            ),
        ],
    )
}

/// The indexes of `changefeed.change`; the model takes from them who can lock a page.
pub fn index_lines() -> Vec<Line> {
    vec![
        with("index ix_sweep_group on shard"),
        beside("index ix_closed on shard", "the model has no closed shard"),
        with("index ix_needs_seqnum on change allow_page_locks = off"),
        with("index ix_seqnum on change"),
    ]
}

fn backfill() -> Script {
    Script::new(
        "backfill.sql",
        [
            step("begin", "begin transaction"),
            step(
                "claim",
                "select @last = b.last_key, @done = b.done, @total = b.total, @finished = b.finished_at from backfill(rowlock,updlock) where b.feed_id = @feed_id",
            ),
            with("if @finished is not null"),
            with("  commit transaction"),
            with("  return"),
            beside(
                "insert @picked select top(@limit) from dbo.item where t.id > @last_id order by t.id",
                "there is one old row for each batch",
            ),
            beside(
                "insert change_row output inserted.change_id, inserted.shard into @ids select from @picked order by p.place",
                "rows of their own, by ids that nobody else has",
            ),
            step(
                "base",
                "insert @base select … from shard, @ids where s.feed_id = @feed_id",
            ),
            step(
                "room",
                "if exists(select 1 from @base b where b.number + b.count > b.start)",
            ),
            with("  update backfill set finished_at = sysutcdatetime() where feed_id = @feed_id"),
            with("else"),
            step(
                "mark out",
                "  update shard(forceseek) set backfilled_to = b.number + b.count from @base",
            ),
            step("give", "  insert change select from @ids, @base"),
            step(
                "done",
                "  update backfill set done = done + @added, last_key = @last, finished_at = case when @seen < @limit then sysutcdatetime() end where feed_id = @feed_id",
            ),
            step("commit", "commit transaction"),
        ],
    )
}

fn refusal() -> Script {
    Script::new(
        "changefeed.change_insert",
        [
            beside(
                "if exists(select 1 from(select distinct n.feed_id, n.shard from inserted n where n.change_sequence_number is null) i join shard s with(readcommittedlock, forceseek(ix_closed(feed_id, shard))) on s.feed_id = i.feed_id and s.shard = i.shard where s.closed = 1)",
                "the model has no closed shard",
            ),
            beside("  throw 55304", "the model has no closed shard"),
            with("if not exists(select 1 from inserted where change_sequence_number is not null)"),
            with("  return"),
            with(
                "if exists(select 1 from inserted i join backfill b on b.feed_id = i.feed_id join shard s on s.feed_id = i.feed_id and s.shard = i.shard where b.finished_at is null and i.change_sequence_number > isnull(s.backfilled_to, 0))",
            ),
            with("  throw 55301"),
            step(
                "refuse",
                "if exists(select 1 from inserted i join shard s on s.feed_id = i.feed_id and s.shard = i.shard where i.change_sequence_number > isnull(s.start, s.last_change_sequence_number) or i.change_sequence_number <= s.trimmed_to)",
            ),
            with("  throw 55302"),
        ],
    )
}

/// `changefeed.read`: the same for readers by SQL.
pub fn read() -> Script {
    let bounds = "cursors out of bounds are refused, as in core";
    Script::new(
        "changefeed.read",
        [
            with("set implicit_transactions off"),
            beside("if @limit is null or @limit < 1", bounds),
            beside("  throw 55020", bounds),
            beside(
                "if not exists(select 1 from feed_access a where a.feed_id = @feed_id)",
                "who may read is no matter of the protocol",
            ),
            beside("  throw 55023", "who may read is no matter of the protocol"),
            beside(
                "if @incarnation <>(select top(1) i.incarnation from incarnation i order by i.number desc)",
                bounds,
            ),
            beside("  throw 55024", bounds),
            step(
                "begun",
                "select @begun = count(*) from backfill where b.feed_id = @feed_id",
            ),
            step(
                "upto",
                "select @upto = isnull(s.start, s.last_change_sequence_number) from shard where s.feed_id = @feed_id and s.shard = @shard and @from < isnull(s.start, s.last_change_sequence_number) and exists(select 1 from backfill b where b.feed_id = @feed_id and b.finished_at is null)",
            ),
            step(
                "page",
                "insert @page select top(@limit) from change, change_row(forceseek), op_name where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number > @from and c.change_sequence_number <= @upto and c.change_sequence_number is not null order by c.change_sequence_number",
            ),
            step(
                "ends",
                "select @start = isnull(s.start, s.last_change_sequence_number), @trimmed = s.trimmed_to, @last = s.last_change_sequence_number from shard where s.feed_id = @feed_id and s.shard = @shard",
            ),
            beside("if @last is null", bounds),
            beside("  throw 55013", bounds),
            with("if @after < @trimmed"),
            with("  throw 55021"),
            beside("if @after > @last", bounds),
            beside("  throw 55022", bounds),
            step(
                "began",
                "if @from < @start and @begun <(select count(*) from backfill b where b.feed_id = @feed_id)",
            ),
            with("  …"),
        ],
    )
}
