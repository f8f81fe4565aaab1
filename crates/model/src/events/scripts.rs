//! The shipped SQL that the model executes.

use crate::script::{Script, beside, step, with};

const TIME: &str = "remembers how far the clock was, for when it is set back";
const WALK: &str = "more keys than one look holds: the same heads, found one after the other";
const PACE: &str = "how many may be taken: fewer, and never others";
const DEBOUNCE: &str = "of what was never tried, the last of a key stands for all";
const PAUSE: &str = "410 Gone: pauses the trigger, and decides nothing about events";

/// What a model of events is made of.
#[derive(Debug, Clone)]
pub struct Scripts {
    /// `event_claim.sql`.
    pub claim: Script,
    /// `event_finish.sql`.
    pub finish: Script,
    /// `event_renew.sql`.
    pub renew: Script,
    /// `event_release.sql`.
    pub release: Script,
}

impl Scripts {
    /// As they are shipped.
    pub fn shipped() -> Self {
        Scripts {
            claim: claim(),
            finish: finish(),
            renew: renew(),
            release: release(),
        }
    }
}

fn claim() -> Script {
    Script::new(
        "event_claim.sql",
        [
            beside("exec note_time", TIME),
            with("while 1 = 1"),
            with("  if @room is null"),
            with("    break"),
            with("  set @now = sysutcdatetime()"),
            step(
                "look",
                "  if not exists(select 1 from event e with(readcommittedlock, readpast) where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null)",
            ),
            with("    continue"),
            beside(
                "  if not exists(select 1 from event_trigger t with(readuncommitted) where t.trigger_id = @trigger and t.paused_because is null and t.dropped_at is null)",
                "the trigger is not paused",
            ),
            beside("    continue", "the trigger is not paused"),
            step("begin", "  begin transaction"),
            with("  if @overall is not null or @paced = 1"),
            step(
                "alone",
                "    update event_trigger(rowlock,updlock) set updated_at = updated_at where trigger_id = @trigger",
            ),
            with("  if @overall is not null"),
            step(
                "held",
                "    select @held = count(*) from event(readuncommitted) where e.trigger_id = @trigger and e.due_at > @now and e.locked_by is not null",
            ),
            step("now", "  set @now = sysutcdatetime()"),
            beside("  if @paced = 1", PACE),
            beside(
                "    select @pace = isnull(t.pace_us, 1), @burst = t.burst, @paced_at = isnull(t.paced_at, dateadd(day, - 2, @now)) from event_trigger where t.trigger_id = @trigger",
                PACE,
            ),
            beside("  if @room > 0 and @debounced = 1", DEBOUNCE),
            beside(
                "    insert @last select from event(readcommittedlock,readpast), event(readcommittedlock,readpast) (top(@p5) where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null and e.generation = 0 and e.op <> 'M' and e.order_key is not null)",
                DEBOUNCE,
            ),
            beside(
                "    update event(forceseek,readpast,rowlock,updlock) set state = 'c', due_at = null, superseded_by = l.change_id from @last where e.due_at is not null and e.generation = 0 and e.op <> 'M'",
                DEBOUNCE,
            ),
            beside(
                "    update event(forceseek,readpast,rowlock,updlock) set due_at = @now from @last where e.due_at is not null and e.generation = 0",
                DEBOUNCE,
            ),
            with("  if @room > 0 and @ordered = 0"),
            step(
                "due",
                "    insert @due select top(@room) from event(readpast,rowlock,updlock) where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null order by e.due_at, e.change_id",
            ),
            with("  if @room > 0 and @ordered = 1"),
            step(
                "heads",
                "    insert @due select top(@room) from event(readcommittedlock,readpast) (top(@p5) where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null) where h.change_id =(select top(1) o.change_id from event o with(readuncommitted) where o.trigger_id = @trigger and o.order_key = h.order_key and o.due_at is not null order by o.change_id) order by h.due_at, h.change_id",
            ),
            beside(
                "    if (select count(*) from @due) < @room and(select count(*) from(select top(@p5 + 1) e.change_id from event e with(readcommittedlock, readpast) where e.trigger_id = @trigger and e.due_at <= @now and e.due_at is not null order by e.due_at, e.change_id) more) > @p5",
                WALK,
            ),
            beside(
                "      while @steps < @p6 and(select count(*) from @due) < @room",
                WALK,
            ),
            beside("        if @steps = 0", WALK),
            beside(
                "          select top(1) @key = e.order_key, @head = e.change_id, @head_due = e.due_at from event(readuncommitted) where e.trigger_id = @trigger and e.due_at is not null and e.order_key >= @key order by e.order_key, e.change_id",
                WALK,
            ),
            beside("        else", WALK),
            beside(
                "          select top(1) @key = e.order_key, @head = e.change_id, @head_due = e.due_at from event(readuncommitted) where e.trigger_id = @trigger and e.due_at is not null and e.order_key > @key order by e.order_key, e.change_id",
                WALK,
            ),
            beside("        if @head is null", WALK),
            beside("          break", WALK),
            beside("        if @head_due <= @now", WALK),
            beside(
                "          insert @due select from event(readcommittedlock,readpast) where e.change_id = @head and e.due_at <= @now and not exists(select 1 from @due d where d.change_id = @head)",
                WALK,
            ),
            step(
                "older",
                "    delete d from @due where exists(select 1 from event e with(forceseek) join event o with(forceseek) on o.trigger_id = e.trigger_id and o.order_key = e.order_key and o.change_id < e.change_id where e.change_id = d.change_id and o.due_at is not null)",
            ),
            step(
                "claim",
                "  update event(forceseek) set due_at = dateadd(millisecond, @lease_milliseconds, dateadd(second, @lease_seconds, @now)), generation = generation + 1, tries = case when tries < 32767 then tries + 1 else tries end, cut_off = case when locked_by is not null and cut_off < 32767 then cut_off + 1 else cut_off end, locked_by = @owner output inserted.change_id, inserted.generation into @mine from @due where due_at <= @now and exists(select 1 from @due d where d.change_id = event.change_id and d.generation = event.generation and d.tries = event.tries and isnull(d.locked_by, N'') = isnull(event.locked_by, N''))",
            ),
            step(
                "unknown",
                "  insert event_attempt select from @due, @mine where d.locked_by is not null and not exists(select 1 from event_attempt a where a.change_id = d.change_id and a.generation = d.generation)",
            ),
            beside("  if @paced = 1", PACE),
            beside(
                "    update event_trigger set paced_at = dateadd(microsecond, convert(int, @step % 1000000), dateadd(second, convert(int, @step / 1000000), @paced_at)) where trigger_id = @trigger and @step > 0",
                PACE,
            ),
            step("commit", "  commit transaction"),
        ],
    )
}

fn finish() -> Script {
    Script::new(
        "event_finish.sql",
        [
            with("set @now = sysutcdatetime()"),
            beside("exec note_time", TIME),
            step("begin", "begin transaction"),
            step(
                "decide",
                "update event(forceseek) set state = (select case when f.verdict in('d', 'e') then f.verdict else 'p' end from @finished f where f.change_id = event.change_id and f.generation = event.generation), due_at = …, cut_off = …, locked_by = null output inserted.change_id, inserted.generation, inserted.trigger_id into @applied from @finished where locked_by is not null and exists(select 1 from @finished f where f.change_id = event.change_id and f.generation = event.generation)",
            ),
            step(
                "record",
                "insert event_attempt select from @finished, @applied",
            ),
            step(
                "known now",
                "update event_attempt(forceseek) set outcome = f.outcome, late = 1, status = f.status, request = f.request, response = f.response, error = f.error, duration_ms = f.duration_ms from @finished where k.outcome = 'unknown' and f.outcome <> 'unknown' and not exists(select 1 from @applied a where a.change_id = f.change_id and a.generation = f.generation)",
            ),
            step(
                "late",
                "insert event_attempt select from @finished, event(forceseek) where not exists(select 1 from event_attempt k where k.change_id = f.change_id and k.generation = f.generation)",
            ),
            beside(
                "if exists(select 1 from @finished f where f.verdict = 'g')",
                PAUSE,
            ),
            beside(
                "  update event_trigger set paused_because = N'the webhook answered 410 Gone', updated_at = @now where paused_because is null and trigger_id in(select a.trigger_id from @applied a join @finished f on f.change_id = a.change_id and f.generation = a.generation where f.verdict = 'g')",
                PAUSE,
            ),
            step("commit", "commit transaction"),
        ],
    )
}

fn renew() -> Script {
    Script::new(
        "event_renew.sql",
        [
            beside("exec note_time", TIME),
            step(
                "renew",
                "update event(forceseek) set due_at = dateadd(millisecond, @p3, dateadd(second, @p2, sysutcdatetime())) output inserted.change_id, inserted.generation into @kept from @held where locked_by is not null and exists(select 1 from @held h where h.change_id = event.change_id and h.generation = event.generation)",
            ),
        ],
    )
}

fn release() -> Script {
    Script::new(
        "event_release.sql",
        [
            beside("exec note_time", TIME),
            step(
                "release",
                "update event(forceseek) set due_at = sysutcdatetime(), locked_by = null, tries = tries - 1 from @held where locked_by is not null and exists(select 1 from @held h where h.change_id = event.change_id and h.generation = event.generation)",
            ),
        ],
    )
}
