//! What keeps changes from getting their numbers.

use std::time::Duration;

use changefeed::{Changefeed, Finding, Kind, LeaseHolder, Result, Severity, ShardState};

/// How long to look whether any change gets a number. A sweep comes many times a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// Nobody of ours takes a lease for longer than a minute: it is renewed instead.
const LONG_LEASE_MS: i64 = 120_000;

pub(super) async fn look(db: &Changefeed) -> Result<Vec<Finding>> {
    let leases = db.lease_holders().await?;
    let mut findings: Vec<Finding> = leases.iter().filter_map(long).collect();
    let before = waiting(db).await?;
    if before.is_empty() {
        return Ok(findings);
    }
    tokio::time::sleep(PATIENCE).await;
    for (feed, state) in waiting(db).await? {
        let stands_still = before.iter().any(|(name, then)| {
            *name == feed && then.shard == state.shard && then.last == state.last
        });
        if stands_still {
            findings.push(standstill(&feed, &state, &leases));
        }
    }
    Ok(findings)
}

/// The shards with changes that wait for their number.
async fn waiting(db: &Changefeed) -> Result<Vec<(String, ShardState)>> {
    let mut waiting = Vec::new();
    for feed in db.feeds().await? {
        match feed.shard_states().await {
            Ok(states) => waiting.extend(
                states
                    .into_iter()
                    .filter(|state| state.pending > 0)
                    .map(|state| (feed.name().to_owned(), state)),
            ),
            // What is broken about it is another finding.
            Err(error) if error.kind() != Kind::Unavailable => {}
            Err(error) => return Err(error),
        }
    }
    Ok(waiting)
}

fn standstill(feed: &str, state: &ShardState, leases: &[LeaseHolder]) -> Finding {
    let group = state.sweep_group;
    let lease = format!("sweep/{group}");
    let held = leases
        .iter()
        .find(|l| l.name == lease && l.expires_in_ms > 0);
    let (who, advice) = match held {
        Some(held) => (
            format!("although {} holds the lease of its sweep group", held.owner),
            "look for another finding about this shard, and whether that process works".to_owned(),
        ),
        None => (
            "and nobody sweeps its group".to_owned(),
            format!("run `changefeed serve` or `changefeed sweep --group {group}`"),
        ),
    };
    Finding::new(
        Severity::Warning,
        format!("feed {feed}"),
        format!(
            "{} changes of shard {} wait and get no numbers, {who}",
            state.pending, state.shard
        ),
        advice,
    )
}

/// A lease that lasts for longer than anybody of ours would ask for.
fn long(lease: &LeaseHolder) -> Option<Finding> {
    (lease.expires_in_ms > LONG_LEASE_MS).then(|| {
        Finding::new(
            Severity::Warning,
            format!("lease {}", lease.name),
            format!(
                "{} holds it for another {} s without having to renew it, and nobody else works \
                 meanwhile",
                lease.owner,
                lease.expires_in_ms / 1000
            ),
            "if its holder is gone, set `expires_at` of that lease to the present time".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use changefeed::{Cursor, ShardId, SweepGroup};

    use super::*;

    fn lease(name: &str, expires_in_ms: i64) -> LeaseHolder {
        LeaseHolder {
            name: name.to_owned(),
            owner: "ann".to_owned(),
            generation: 1,
            expires_in_ms,
        }
    }

    #[test]
    fn a_lease_that_nobody_of_ours_would_take_is_told_of() {
        assert_eq!(long(&lease("sweep/0", 60_000)), None);
        let finding = long(&lease("sweep/0", 3_600_000)).unwrap();
        assert!(finding.message.contains("ann holds it for another 3600 s"));
    }

    #[test]
    fn a_shard_that_stands_still_is_told_of_with_who_should_sweep_it() {
        let state = ShardState {
            shard: ShardId(3),
            sweep_group: SweepGroup(7),
            last: Cursor::Number(1),
            pending: 5,
            since_ms: 0,
        };
        let nobody = standstill("f", &state, &[lease("sweep/7", -1), lease("sweep/0", 500)]);
        assert!(nobody.message.ends_with("nobody sweeps its group"));
        assert!(nobody.advice.unwrap().contains("--group 7"));
        let held = standstill("f", &state, &[lease("sweep/7", 500)]);
        assert!(held.message.contains("although ann holds the lease"));
    }
}
