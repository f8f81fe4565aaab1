//! Whether a long log makes it slower to take the events that are due.

use std::time::{Duration, Instant};

use changefeed::{EventTrigger, Result, Wanted};

use super::clear_log;
use crate::events::Orders;
use crate::postgres::scratch::Scratch;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Events that are taken at once.
const BATCH: u32 = 100;
/// Nothing is delivered here, so it does not matter that nobody listens.
const NOWHERE: &str = "http://127.0.0.1:9/";
/// A payload of the usual size.
const NEW: &str = "json_build_object('id', i, 'customer', i % 1000, \
     'note', 'a note of the customer about order ' || i, 'amount', i / 100.0, 'ordered_at', now())";

/// What it costs to take events, in milliseconds.
#[derive(Default)]
struct Costs {
    empty: Sample,
    full: Sample,
}

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let trigger = scratch.send_to(NOWHERE).await?;
    let id = trigger.id.0;
    findings.doing("fetch: from an empty log");
    clear_log(scratch).await?;
    let before = look(scratch, &trigger, scale).await?;

    findings.doing(&format!("fetch: {} delivered events", scale.event_log));
    clear_log(scratch).await?;
    scratch
        .run(&format!(
            "insert into changefeed.event \
               (trigger_id, state, due_at, op, generation, tries, new) \
             select {id}, 'd', null, 'I', 1, 1, {NEW} from generate_series(1, {}) i",
            scale.event_log
        ))
        .await?;
    let long = look(scratch, &trigger, scale).await?;

    findings.doing(&format!(
        "fetch: {} events delivered while a snapshot was held",
        scale.held_events
    ));
    clear_log(scratch).await?;
    let holder = scratch.target.session().await?;
    holder
        .batch_execute("begin isolation level repeatable read; select 1")
        .await
        .map_err(crate::postgres::session::db)?;
    // The life of an event: captured, taken, delivered. The leases are short, so that what is
    // left of them in the index lies in the past, as it does half a minute later.
    scratch
        .run(&format!(
            "insert into changefeed.event (trigger_id, op, new) \
             select {id}, 'I', {NEW} from generate_series(1, {}) i; \
             update changefeed.event set due_at = clock_timestamp(), locked_by = 'bench', \
               generation = 1, tries = 1; \
             update changefeed.event set due_at = null, locked_by = null, state = 'd'",
            scale.held_events
        ))
        .await?;
    let held = look(scratch, &trigger, scale).await?;
    drop(holder);

    // Once more, in case the machine has become slower or faster in the meantime.
    findings.doing("fetch: from an empty log again");
    clear_log(scratch).await?;
    let after = look(scratch, &trigger, scale).await?;

    let names = match scale.event_log >= 1_000_000 {
        true => [
            "fetch, nothing due, 1 million delivered, against none",
            "fetch of 100, 1 million delivered, against none",
            "fetch, nothing due, 1 million delivered under a held snapshot",
            "fetch of 100, 1 million delivered under a held snapshot",
        ],
        false => [
            "fetch, nothing due, 200,000 delivered, against none",
            "fetch of 100, 200,000 delivered, against none",
            "fetch, nothing due, 100,000 delivered under a held snapshot",
            "fetch of 100, 100,000 delivered under a held snapshot",
        ],
    };
    let most = Some(Budget::at_most(1.3));
    let empty = (&before.empty, &after.empty);
    let full = (&before.full, &after.full);
    for (name, ours, bare, budget) in [
        (names[0], &long.empty, empty, most),
        (names[1], &long.full, full, most),
        (names[2], &held.empty, empty, None),
        (names[3], &held.full, full, None),
    ] {
        findings.add(Measure::bracketed(name, "ms", ours, bare, budget));
    }
    Ok(())
}

async fn look(scratch: &Scratch, trigger: &EventTrigger, scale: &Scale) -> Result<Costs> {
    let mut costs = Costs::default();
    // As autovacuum would do soon.
    scratch.tidy().await?;
    if let Err(error) = scratch.run("checkpoint").await {
        tracing::debug!(%error, "no checkpoint before the measure");
    }
    take(scratch, trigger, scale.empty_claims, &mut costs.empty).await?;
    scratch
        .order(u64::from(BATCH) * (scale.full_claims as u64 + 1))
        .await?;
    take(scratch, trigger, scale.full_claims, &mut costs.full).await?;
    Ok(costs)
}

/// Takes events again and again: once to warm up, then to count. It stops early when that has
/// taken long enough to know.
async fn take(
    scratch: &Scratch,
    trigger: &EventTrigger,
    times: usize,
    costs: &mut Sample,
) -> Result<()> {
    let wanted = [Wanted {
        trigger: trigger.id,
        limit: BATCH,
        overall: None,
        ordered: false,
    }];
    let lease = Duration::from_secs(600);
    let all = Instant::now();
    for turn in 0..=times {
        let began = Instant::now();
        scratch
            .db
            .store()
            .claim_events(&wanted, "changefeed bench", lease)
            .await?;
        if turn > 0 {
            costs.add_millis(began.elapsed());
        }
        if turn > 3 && all.elapsed() > Duration::from_secs(10) {
            break;
        }
    }
    Ok(())
}
