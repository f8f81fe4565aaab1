//! Whether a long log makes it slower to take the events that are due, or to find out that none is
//! old enough to be removed.

use std::time::{Duration, Instant};

use changefeed::{Changefeed, CleanUp, EventTrigger, Result};
use changefeed_core::Wanted;

use super::Server;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Events that are taken at once.
const BATCH: u32 = 100;
/// Nothing is delivered here, so it does not matter that nobody listens.
const NOWHERE: &str = "http://127.0.0.1:9/";

/// What it costs to take events, and to look for old ones, in milliseconds.
#[derive(Default)]
struct Costs {
    empty: Sample,
    full: Sample,
    clean_up: Sample,
}

pub(crate) async fn measure(
    db: &Changefeed,
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let trigger = server.send_to(NOWHERE).await?;
    findings.doing("fetch: from an empty log");
    server.clear_log().await?;
    let before = look(db, server, &trigger, scale).await?;

    findings.doing(&format!("fetch: {} delivered events", scale.event_log));
    server.clear_log().await?;
    server.fill_log(&trigger, scale.event_log).await?;
    let long = look(db, server, &trigger, scale).await?;

    findings.doing(&format!(
        "fetch: {} events delivered while a snapshot was held",
        scale.held_events
    ));
    server.clear_log().await?;
    let snapshot = server.hold_snapshot().await?;
    let held = match snapshot {
        Some(_) => {
            server.live(&trigger, scale.held_events).await?;
            Some(look(db, server, &trigger, scale).await?)
        }
        None => {
            findings.note("fetch: nobody can hold a snapshot in this database");
            None
        }
    };
    drop(snapshot);

    // Once more, in case the machine has become slower or faster in the meantime.
    findings.doing("fetch: from an empty log again");
    server.clear_log().await?;
    let after = look(db, server, &trigger, scale).await?;

    let names = match scale.event_log >= 1_000_000 {
        true => [
            "fetch, nothing due, 1 million delivered, against none",
            "fetch of 100, 1 million delivered, against none",
            "fetch, nothing due, 1 million delivered under a held snapshot",
            "fetch of 100, 1 million delivered under a held snapshot",
            "clean-up, nothing old, 1 million delivered, against none",
        ],
        false => [
            "fetch, nothing due, 200,000 delivered, against none",
            "fetch of 100, 200,000 delivered, against none",
            "fetch, nothing due, 100,000 delivered under a held snapshot",
            "fetch of 100, 100,000 delivered under a held snapshot",
            "clean-up, nothing old, 200,000 delivered, against none",
        ],
    };
    let most = Some(Budget::at_most(1.3));
    let empty = (&before.empty, &after.empty);
    let full = (&before.full, &after.full);
    let clean_up = (&before.clean_up, &after.clean_up);
    for (name, ours, bare) in [
        (names[0], &long.empty, empty),
        (names[1], &long.full, full),
        (names[4], &long.clean_up, clean_up),
    ] {
        findings.add(Measure::bracketed(name, "ms", ours, bare, most));
    }
    if let Some(held) = held {
        findings.add(Measure::bracketed(names[2], "ms", &held.empty, empty, None));
        findings.add(Measure::bracketed(names[3], "ms", &held.full, full, None));
    }
    Ok(())
}

async fn look(
    db: &Changefeed,
    server: &impl Server,
    trigger: &EventTrigger,
    scale: &Scale,
) -> Result<Costs> {
    let mut costs = Costs::default();
    server.come_to_rest().await?;
    let wanted = [Wanted {
        trigger: trigger.id,
        limit: BATCH,
        overall: None,
        ordered: false,
        debounced: false,
        paced: false,
    }];
    let (store, lease) = (db.store(), Duration::from_secs(600));
    let take = || store.claim_events(&wanted, "changefeed bench", lease);
    again_and_again(scale.empty_claims, &mut costs.empty, take).await?;
    let old = CleanUp {
        after: Duration::from_secs(24 * 3600),
        dead_letters: true,
    };
    let look = || store.clean_up_events(Some(trigger), old, 1000);
    again_and_again(scale.empty_claims, &mut costs.clean_up, look).await?;
    server
        .order(u64::from(BATCH) * (scale.full_claims as u64 + 1))
        .await?;
    again_and_again(scale.full_claims, &mut costs.full, take).await?;
    Ok(costs)
}

/// Once to warm up, then to count. It stops early when that has taken long enough to know.
async fn again_and_again<T>(
    times: usize,
    costs: &mut Sample,
    work: impl AsyncFn() -> Result<T>,
) -> Result<()> {
    let all = Instant::now();
    for turn in 0..=times {
        let began = Instant::now();
        work().await?;
        if turn > 0 {
            costs.add_millis(began.elapsed());
        }
        if turn > 3 && all.elapsed() > Duration::from_secs(10) {
            break;
        }
    }
    Ok(())
}
