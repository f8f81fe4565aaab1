//! The shipped SQL that the model executes.

use crate::script::{Script, beside, step, with};

const MISUSE: &str = "refuses misuse, and changes nothing";
const CONTEXT: &str = "what ulid_sequence reads; the model's process knows it by itself";
const ROOM: &str =
    "the lower halves of ULIDs do not wrap around; the model's are numbers without end";
const TIME: &str = "time passes as the checker likes: a holder is silent from any moment on";

/// What a model of ULID transactions is made of.
#[derive(Debug, Clone)]
pub struct Scripts {
    /// `changefeed.ulid_wait`.
    pub wait: Script,
    /// `changefeed.ulid_enter`.
    pub enter: Script,
    /// `changefeed.commit_ulid_transaction`.
    pub commit: Script,
    /// `changefeed.report_incident`.
    pub report: Script,
    /// What our library sends to commit: one batch.
    pub batch: Script,
}

impl Scripts {
    /// As they are shipped.
    pub fn shipped() -> Self {
        Scripts {
            wait: wait(),
            enter: enter(),
            commit: commit(),
            report: report(),
            batch: batch(),
        }
    }
}

fn wait() -> Script {
    Script::new(
        "changefeed.ulid_wait",
        [
            with("set xact_abort on"),
            beside("set @started = sysutcdatetime()", TIME),
            step(
                "count",
                "select @incidents = isnull(max(i.[count]), 0) from incident(readuncommitted) where i.feed_id = @feed_id and i.shard_id = @shard_id",
            ),
            with("while 1 = 1"),
            step("try", "  exec @result = ulid_try_lock @name, @owner, @step"),
            step(
                "count again",
                "  select @now_counted = isnull(max(i.[count]), 0) from incident(readuncommitted) where i.feed_id = @feed_id and i.shard_id = @shard_id",
            ),
            with("  if @now_counted <> @incidents"),
            with("    if @result >= 0 and @owner = 'Session'"),
            with("      exec ulid_unlock @name"),
            with("    throw 55601"),
            with("  if @result >= 0"),
            with("    return"),
            beside("  if @result < - 1", "the server has cut the wait off"),
            beside("    throw 55602", "the server has cut the wait off"),
            with(
                "  exec ulid_silence @feed_id, @shard_id, @incidents, @longest output, @silent output",
            ),
            beside("  if @silent is not null", TIME),
            beside("  else", TIME),
            beside("    if @unknown_since is null", TIME),
            beside("      set @unknown_since = sysutcdatetime()", TIME),
            beside("  if @unknown_since is not null", TIME),
            beside(
                "    set @silent = datediff_big(millisecond, @unknown_since, sysutcdatetime())",
                TIME,
            ),
            with("  if @silent >= @longest"),
            with("    exec sp_set_session_context N'ulid_incident', @note"),
            with("    throw 55601"),
            beside(
                "  if datediff_big(millisecond, @started, sysutcdatetime()) >= @wait",
                TIME,
            ),
            beside("    throw 55602", TIME),
        ],
    )
}

fn enter() -> Script {
    Script::new(
        "changefeed.ulid_enter",
        [
            with("set xact_abort on"),
            beside("if @@trancount = 0", MISUSE),
            beside(
                "  select @incidents = max(i.[count]) from incident(readuncommitted) where i.feed_id = @feed_id and i.shard_id = @shard_id",
                "begins an implicit transaction; the model's has begun",
            ),
            beside("  if @@trancount = 0", MISUSE),
            beside("    throw 55604", MISUSE),
            beside("if @feed_id is null or @shard_id is null", MISUSE),
            beside("  throw 55604", MISUSE),
            beside(
                "if @timeout is null or @timeout < 10 or @wait is null or @wait < 0",
                MISUSE,
            ),
            beside("  throw 55604", MISUSE),
            beside(
                "if convert(bigint, session_context(N'ulid_transaction')) = @transaction_id",
                MISUSE,
            ),
            beside("  set @message = …", MISUSE),
            beside("  throw 55604", MISUSE),
            with(
                "select @level = s.transaction_isolation_level from sys.dm_exec_sessions where s.session_id = @@spid",
            ),
            with("set @name = convert(nvarchar(255), session_context(N'ulid_lock'))"),
            with("if @name is not null"),
            step(
                "count",
                "  select @incidents = isnull(max(i.[count]), 0) from incident(readuncommitted) where i.feed_id = @feed_id and i.shard_id = @shard_id",
            ),
            with("  exec ulid_locked @name, @held output, @mine output"),
            with("  if @mine = 1 and @name <> ulid_lock_name(@feed_id, @shard_id, @incidents)"),
            with("    throw 55601"),
            with("if @mine = 0"),
            with("  if @level = 5"),
            with("    throw 55604"),
            step(
                "wait",
                "  exec ulid_wait @feed_id, @shard_id, @timeout, @wait, 'Transaction', @incidents output",
            ),
            with("if @level <> 5"),
            step("level", "  set transaction isolation level read committed"),
            step("time", "set @time = isnull(@time_hint, sysutcdatetime())"),
            beside("if @time < '1970-01-01'", MISUSE),
            beside("  throw 55604", MISUSE),
            beside("if @time_hint > sysutcdatetime()", MISUSE),
            beside(
                "  select @ahead = max(l.ahead_milliseconds) from ulid_limit(readuncommitted)",
                MISUSE,
            ),
            beside(
                "  if datediff_big(millisecond, sysutcdatetime(), @time_hint) > @ahead",
                MISUSE,
            ),
            beside("    throw 55604", MISUSE),
            step(
                "state",
                "select @before_time = s.[time], @before_high = s.ulid_high, @before_low = s.ulid_low from shard_ulid where s.feed_id = @feed_id and s.shard_id = @shard_id",
            ),
            step("base", "set @base = next value for sequence"),
            step(
                "left",
                "select top(1) @left_time = l.[time], @left_high = l.high, @left_low = l.low +(@base - l.base) from ulid_life(readuncommitted) where l.feed_id = @feed_id and l.shard_id = @shard_id order by l.high desc, l.low +(@base - l.base) desc",
            ),
            with("if @left_high is not null"),
            with("  if @level <> 5"),
            step(
                "tidy",
                "    delete ulid_life(readcommittedlock,readpast,rowlock) where feed_id = @feed_id and shard_id = @shard_id",
            ),
            beside(
                "if @time <= @floor_time and(@floor_low & convert(bigint, 9223372036854775807)) >= convert(bigint, 6917529027641081856)",
                ROOM,
            ),
            beside("  if @floor_time >= '9999-12-31T23:59:59.999'", ROOM),
            beside("    throw 55604", ROOM),
            with("if @floor_time is null or @time > @floor_time"),
            with("  set @random = crypt_gen_random(10)"),
            step("life", "insert ulid_life values"),
            beside(
                "select @shard = concat(@feed_id, N'/', @shard_id), @start = @low + @reserved, @due = dateadd(millisecond, @timeout / 10, sysutcdatetime())",
                TIME,
            ),
            with("exec sp_set_session_context N'ulid_incident', null"),
            beside(
                "exec sp_set_session_context N'ulid_transaction', @transaction_id",
                CONTEXT,
            ),
            beside("exec sp_set_session_context N'ulid_shard', @shard", CONTEXT),
            beside("exec sp_set_session_context N'ulid_high', @high", CONTEXT),
            beside("exec sp_set_session_context N'ulid_low', @start", CONTEXT),
            beside("exec sp_set_session_context N'ulid_base', @base", CONTEXT),
            beside("exec sp_set_session_context N'ulid_due', @due", TIME),
        ],
    )
}

fn commit() -> Script {
    Script::new(
        "changefeed.commit_ulid_transaction",
        [
            with("set xact_abort on"),
            beside(
                "set @transaction_id = convert(bigint, session_context(N'ulid_transaction'))",
                CONTEXT,
            ),
            beside(
                "set @shard = convert(nvarchar(255), session_context(N'ulid_shard'))",
                CONTEXT,
            ),
            beside(
                "if @@trancount = 0 or @transaction_id is null or @transaction_id <> ulid_transaction_id()",
                MISUSE,
            ),
            beside("  throw 55604", MISUSE),
            beside("if @@trancount > 1", MISUSE),
            beside("  throw 55604", MISUSE),
            beside(
                "exec sp_set_session_context N'ulid_transaction', null",
                CONTEXT,
            ),
            with(
                "select @incidents = max(l.incidents) from ulid_life(readuncommitted) where l.feed_id = @feed_id and l.shard_id = @shard_id and l.transaction_id = @transaction_id",
            ),
            step(
                "mine",
                "delete ulid_life output deleted.incidents, deleted.[time], deleted.before_high, deleted.before_low, deleted.high, deleted.low, deleted.base into @begun where feed_id = @feed_id and shard_id = @shard_id and incidents = @incidents and transaction_id = @transaction_id",
            ),
            beside("if @high is null", MISUSE),
            beside("  throw 55604", MISUSE),
            with("try"),
            step(
                "incident",
                "  update incident(rowlock,updlock) set [count] = [count] where feed_id = @feed_id and shard_id = @shard_id and [count] = @incidents",
            ),
            with("  if @changed = 0 and @incidents = 0"),
            with(
                "    insert incident select where not exists(select 1 from incident i where i.feed_id = @feed_id and i.shard_id = @shard_id)",
            ),
            with("catch"),
            with("  if error_number() not in(2627, 2601, 3960)"),
            with("    throw"),
            with("if @changed = 0"),
            with("  throw 55603"),
            step("drawn", "set @drawn = next value for sequence"),
            beside(
                "if @drawn - @base >= convert(bigint, 1152921504606846976)",
                ROOM,
            ),
            beside("  throw 55604", ROOM),
            with("try"),
            with("  if @before_high is null"),
            with("    insert shard_ulid values"),
            with("  else"),
            step(
                "move",
                "    update shard_ulid set [time] = @time, ulid_high = @high, ulid_low = @low where feed_id = @feed_id and shard_id = @shard_id and ulid_high = @before_high and ulid_low = @before_low",
            ),
            with("catch"),
            with("  if error_number() not in(2627, 2601, 3960)"),
            with("    throw"),
            with("if @changed = 0"),
            with("  throw 55603"),
        ],
    )
}

fn report() -> Script {
    Script::new(
        "changefeed.report_incident",
        [
            with("set xact_abort on"),
            with("set implicit_transactions off"),
            with("set transaction isolation level read committed"),
            beside("if @@trancount > 0", MISUSE),
            beside("  throw 55604", MISUSE),
            beside("if @timeout is null or @timeout < 10", MISUSE),
            beside("  throw 55604", MISUSE),
            with("set @noted = convert(nvarchar(255), session_context(N'ulid_incident'))"),
            with("exec sp_set_session_context N'ulid_incident', null"),
            step(
                "observed",
                "select @observed = isnull(max(i.[count]), 0) from incident where i.feed_id = @feed_id and i.shard_id = @shard_id",
            ),
            step("held", "exec ulid_locked @name, @held output, @mine output"),
            with("if @held = 0 or @mine = 1"),
            with("  return"),
            step(
                "silence",
                "exec ulid_silence @feed_id, @shard_id, @observed, @timeout output, @silent output",
            ),
            with(
                "if @silent < @timeout or(@silent is null and(@noted is null or @noted <> @name))",
            ),
            with("  return"),
            step(
                "raise",
                "update incident set [count] = [count] + 1, reported_at = sysutcdatetime() where feed_id = @feed_id and shard_id = @shard_id and [count] = @observed",
            ),
            with("if @raised = 0 and @observed = 0"),
            with("  try"),
            with(
                "    insert incident select sysutcdatetime() where not exists(select 1 from incident i where i.feed_id = @feed_id and i.shard_id = @shard_id)",
            ),
            with("  catch"),
            with("    if error_number() not in(2627, 2601)"),
            with("      throw"),
        ],
    )
}

fn batch() -> Script {
    Script::new(
        "ulids.rs: exec changefeed.commit_ulid_transaction",
        [
            step("verify", "exec commit_ulid_transaction"),
            step("commit", "commit transaction"),
        ],
    )
}
