//! The shipped SQL that the model executes.

use crate::script::{Script, beside, step, with};

const TIME: &str = "remembers how far the clock was, for when it is set back";
const COLUMNS: &str = "which columns were changed, not which rows";

/// What a model of watches is made of.
#[derive(Debug, Clone)]
pub struct Scripts {
    /// `watch_changes_tracked.sql`.
    pub read: Script,
    /// `watch_changes_noted.sql`.
    pub noted: Script,
    /// `watch_move.sql`.
    pub moves: Script,
    /// `watch_move_function.sql`.
    pub function: Script,
    /// `watch_missed.sql`.
    pub missed: Script,
    /// `watch_load.sql`.
    pub load: Script,
    /// `watch_lease.sql`.
    pub lease: Script,
    /// `watch_claim.sql`.
    pub claim: Script,
    /// `watch_settle.sql`.
    pub settle: Script,
    /// `watch_done.sql`.
    pub done: Script,
    /// `watch_failed.sql`.
    pub failed: Script,
    /// Whether another life of change tracking is noticed: `if @noted <> @known` in
    /// watch_changes_tracked.sql.
    pub compares_life: bool,
}

impl Scripts {
    /// As they are shipped.
    pub fn shipped() -> Self {
        Scripts {
            read: read(),
            noted: noted(),
            moves: moves(),
            function: function(),
            missed: missed(),
            load: load(),
            lease: lease(),
            claim: claim(),
            settle: settle(),
            done: done(),
            failed: failed(),
            compares_life: true,
        }
    }
}

fn read() -> Script {
    Script::new(
        "watch_changes_tracked.sql",
        [
            with("set transaction isolation level snapshot"),
            step("begin", "begin transaction"),
            step("until", "set @until = change_tracking_current_version()"),
            step(
                "since",
                "select @since = t.tracked_version, @known = t.tracked_in from watched_table where t.table_id = @table_id",
            ),
            step(
                "floor",
                "set @floor = change_tracking_min_valid_version(@table_id)",
            ),
            with("if @until is null or @floor is null"),
            with("  throw 55701"),
            step(
                "behind",
                "if @since < @floor or @since > change_tracking_current_version()",
            ),
            with("  …"),
            with("else"),
            step(
                "changes",
                "  insert @scanned select top(10) with ties from changetable(changes dbo.item, @since) where c.sys_change_version <= @until order by c.sys_change_version",
            ),
            step(
                "noted",
                "set @noted = (select concat(i.object_id, '/', c.begin_version) from tracking i, tracking c)",
            ),
            step("end", "commit transaction"),
            with("set transaction isolation level read committed"),
        ],
    )
}

fn noted() -> Script {
    Script::new(
        "watch_changes_noted.sql",
        [
            step(
                "log",
                "insert @scanned select top(10) … from log(readcommittedlock,readpast,rowlock,updlock) order by l._changefeed_order",
            ),
            with("if @@rowcount > 0"),
            step("delete", "  delete log(forceseek,rowlock) from @scanned"),
        ],
    )
}

fn moves() -> Script {
    Script::new(
        "watch_move.sql",
        [
            with("while @moved >= 10"),
            step("begin", "  begin transaction"),
            step(
                "lock",
                "  update watched_table set last_version = last_version + 1, tracked_version = @until, tracked_in = isnull(@noted, tracked_in) where table_id = @table_id and generation = @functions_generation and tracked_version = @since and isnull(tracked_in, '') = isnull(@known, '')",
            ),
            with("  if @@rowcount = 0"),
            with("    commit transaction"),
            with(
                "    if not exists(select 1 from watched_table t where t.table_id = @table_id and t.generation = @functions_generation)",
            ),
            with("      …"),
            with("    break"),
            step("take", "  exec take_changes"),
            with(
                "  update watched_table set last_version = last_version + @keys where table_id = @table_id",
            ),
            with(
                "  select @base = t.last_version - @keys from watched_table where t.table_id = @table_id",
            ),
            with("  if @keys > 0"),
            step("functions", "    exec functions"),
            step("commit", "  commit transaction"),
            with("  if @missed is not null"),
            with("    break"),
        ],
    )
}

fn function() -> Script {
    Script::new(
        "watch_move_function.sql",
        [
            step(
                "put",
                "update leases set _changefeed_newer_operation = …, _changefeed_operation = …, _changefeed_newer_columns = …, _changefeed_columns = …, _changefeed_change_version = case when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order then q._changefeed_change_version else @base + n.number end, _changefeed_attempt_count = case when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order then q._changefeed_attempt_count else 0 end, _changefeed_retry_time = case when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order then q._changefeed_retry_time end, _changefeed_parked_time = case when n.newest < q._changefeed_order then q._changefeed_parked_time end, _changefeed_order = case when n.newest < q._changefeed_order then q._changefeed_order else n.newest end from @net",
            ),
            with(
                "insert leases select from @net where not exists(select 1 from leases q where q.id = k0)",
            ),
            beside(
                "update leases set _changefeed_columns = …, _changefeed_newer_columns = … from @net where q._changefeed_columns is not null and len(q._changefeed_columns) + len(isnull(q._changefeed_newer_columns, '')) > 4000",
                COLUMNS,
            ),
        ],
    )
}

fn missed() -> Script {
    Script::new(
        "watch_missed.sql",
        [
            with("if @missed is not null"),
            with("  update watch set loading = 1, loaded_to = null where table_id = @table_id"),
            with(
                "  update watched_table set missed_at = sysutcdatetime(), missed = @missed where table_id = @table_id",
            ),
            with("  exec functions"),
        ],
    )
}

fn load() -> Script {
    Script::new(
        "watch_load.sql",
        [
            with(
                "select @last = w.loaded_to, @operation = w.loading from watch where w.function_id = @function_id",
            ),
            with("if @operation is null"),
            with("  return"),
            step(
                "pick",
                "insert @picked select top(10) from dbo.item where t.id > @last_id order by t.id",
            ),
            step("begin", "begin transaction"),
            step(
                "lock",
                "update watched_table set last_version = last_version + 1 where table_id = @table_id",
            ),
            step(
                "first",
                "update watch set loaded_to = (select top(1) p.[key] from @picked p order by p.place desc), loading = case when @seen < 10 then null else @operation end where function_id = @function_id and loading = @operation and isnull(loaded_to, N'') = isnull(@last, N'')",
            ),
            with("if @@rowcount = 1"),
            with(
                "  update watched_table set last_version = last_version + @seen where table_id = @table_id",
            ),
            with(
                "  select @base = t.last_version - @seen from watched_table where t.table_id = @table_id",
            ),
            step(
                "load",
                "  insert leases select from @picked where not exists(select 1 from leases q where q.id = k0)",
            ),
            step("commit", "commit transaction"),
            with(
                "select convert(bit, case when exists(select 1 from watch w where w.function_id = @function_id and w.loading is not null) then 1 else 0 end)",
            ),
        ],
    )
}

fn lease() -> Script {
    Script::new(
        "watch_lease.sql",
        [
            step("begin", "begin transaction"),
            step(
                "lock",
                "update watched_table set last_version = last_version + 1 where table_id = @table_id",
            ),
            beside("exec note_time", TIME),
            with(
                "select @generation = t.last_version from watched_table where t.table_id = @table_id",
            ),
            with("set @now = sysutcdatetime()"),
            with(
                "insert @newer select from leases where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null and q._changefeed_lease_expiration_time <= @now and q._changefeed_attempt_count >= @attempts",
            ),
            with(
                "update watched_table set last_version = last_version +(select count(*) from @newer) where table_id = @table_id",
            ),
            with(
                "select @base = t.last_version -(select count(*) from @newer) from watched_table where t.table_id = @table_id",
            ),
            step(
                "give up",
                "update leases set _changefeed_parked_time = case when _changefeed_newer_operation is null then @now end, _changefeed_last_error = concat(isnull(_changefeed_lease_owner, N'an instance'), N' did not report back: outcome unknown'), _changefeed_change_version = case when _changefeed_newer_operation is null then _changefeed_change_version else @base +(select n.number from @newer n where n.version = _changefeed_change_version) end, _changefeed_attempt_count = case when _changefeed_newer_operation is null then _changefeed_attempt_count else 0 end, _changefeed_operation = …, _changefeed_columns = …, _changefeed_newer_operation = null, _changefeed_newer_columns = null, _changefeed_lease_owner = null, _changefeed_lease_generation = null, _changefeed_lease_expiration_time = null, _changefeed_retry_time = null where _changefeed_attempt_count > 0 and _changefeed_parked_time is null and _changefeed_lease_expiration_time <= @now and _changefeed_attempt_count >= @attempts",
            ),
            step(
                "due",
                "insert @due select top(10) from leases where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null and(q._changefeed_lease_generation is null or q._changefeed_lease_expiration_time <= @now or(q._changefeed_lease_owner = @owner and q._changefeed_retry_time <= @now)) order by q._changefeed_change_version",
            ),
            with("if @tried is null"),
            with(
                "  insert @due select top(10) from leases where q._changefeed_attempt_count = 0 and q._changefeed_parked_time is null order by q._changefeed_change_version",
            ),
            with("if @tried is null"),
            step("claim", "  exec claim_new"),
            with("else"),
            with("  exec claim_tried"),
            with(
                "select @rows = count(*), @lowest = min(q._changefeed_change_version), @highest = max(q._changefeed_change_version), @attempt = max(q._changefeed_attempt_count) from leases where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null and q._changefeed_lease_generation = @generation",
            ),
            step("commit", "commit transaction"),
        ],
    )
}

fn claim() -> Script {
    Script::new(
        "watch_claim.sql",
        [with(
            "update leases set _changefeed_last_error = …, _changefeed_lease_expiration_time = dateadd(millisecond, 1, dateadd(second, 1, @now)), _changefeed_lease_owner = @owner, _changefeed_lease_generation = @generation, _changefeed_attempt_count = _changefeed_attempt_count + 1, _changefeed_bits = …, _changefeed_bits_version = _changefeed_change_version, _changefeed_retry_time = null where _changefeed_attempt_count = 0 and _changefeed_parked_time is null and exists(select 1 from @due d where d.version = leases._changefeed_change_version)",
        )],
    )
}

fn settle() -> Script {
    Script::new(
        "watch_settle.sql",
        [
            with("set transaction isolation level read committed"),
            step("begin", "begin transaction"),
            step(
                "lock",
                "update watched_table set last_version = last_version + 1 where table_id = @table_id",
            ),
            beside("exec note_time", TIME),
            with("set @now = sysutcdatetime()"),
            with(
                "insert @newer select from leases where _changefeed_attempt_count > 0 and _changefeed_parked_time is null and _changefeed_change_version between @p1 and @p2 and _changefeed_lease_generation = @p3 and q._changefeed_newer_operation is not null",
            ),
            with(
                "update watched_table set last_version = last_version +(select count(*) from @newer) where table_id = @table_id",
            ),
            with(
                "select @base = t.last_version -(select count(*) from @newer) from watched_table where t.table_id = @table_id",
            ),
            step("settle", "exec settle"),
            step("commit", "commit transaction"),
        ],
    )
}

fn done() -> Script {
    Script::new(
        "watch_done.sql",
        [
            step(
                "done",
                "delete leases where _changefeed_attempt_count > 0 and _changefeed_parked_time is null and _changefeed_change_version between @p1 and @p2 and _changefeed_lease_generation = @p3 and _changefeed_newer_operation is null",
            ),
            with(
                "update leases set _changefeed_change_version = @base +(select n.number from @newer n where n.version = _changefeed_change_version), _changefeed_operation = _changefeed_newer_operation, _changefeed_newer_operation = null, _changefeed_columns = _changefeed_newer_columns, _changefeed_newer_columns = null, _changefeed_attempt_count = 0, _changefeed_last_error = null, _changefeed_lease_owner = null, _changefeed_lease_generation = null, _changefeed_lease_expiration_time = null, _changefeed_retry_time = null where _changefeed_attempt_count > 0 and _changefeed_parked_time is null and _changefeed_change_version between @p1 and @p2 and _changefeed_lease_generation = @p3",
            ),
        ],
    )
}

fn failed() -> Script {
    Script::new(
        "watch_failed.sql",
        [
            with(
                "update leases set _changefeed_parked_time = case when _changefeed_newer_operation is null then @now end, _changefeed_last_error = @error, _changefeed_change_version = case when _changefeed_newer_operation is null then _changefeed_change_version else @base +(select n.number from @newer n where n.version = _changefeed_change_version) end, _changefeed_attempt_count = case when _changefeed_newer_operation is null then _changefeed_attempt_count else 0 end, _changefeed_operation = …, _changefeed_columns = …, _changefeed_newer_operation = null, _changefeed_newer_columns = null, _changefeed_lease_owner = null, _changefeed_lease_generation = null, _changefeed_lease_expiration_time = null, _changefeed_retry_time = null where _changefeed_attempt_count > 0 and _changefeed_parked_time is null and _changefeed_change_version between @p1 and @p2 and _changefeed_lease_generation = @p3 and _changefeed_attempt_count >= @attempts",
            ),
            with(
                "update leases set _changefeed_last_error = @error, _changefeed_retry_time = dateadd(millisecond, 1, dateadd(second, 1, @now)) where _changefeed_attempt_count > 0 and _changefeed_parked_time is null and _changefeed_change_version between @p1 and @p2 and _changefeed_lease_generation = @p3",
            ),
        ],
    )
}
