//! What keeps changes from getting their numbers.

use std::time::{Duration, Instant};

use changefeed_core::{FeedName, Finding, Kind, LeaseHolder, Result, Severity, ShardState};

use crate::Changefeed;

/// How long to look whether any change gets a number. A sweep comes many times a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for somebody who only wants to read.
const BRIEF: Duration = Duration::from_millis(500);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Nobody of ours takes a lease for longer than a minute: it is renewed instead.
const LONG_LEASE_MS: i64 = 120_000;

pub(super) async fn look(db: &Changefeed) -> Result<Vec<Finding>> {
    let leases = db.lease_holders().await?;
    let mut findings: Vec<Finding> = leases.iter().filter_map(long).collect();
    let still = standing_still(db, PATIENCE, |_| true).await?;
    findings.extend(still.iter().map(|still| still.finding(&leases)));
    Ok(findings)
}

/// The shards of a feed whose changes wait for their numbers because nobody sweeps them. Takes a moment if changes wait
/// and nobody holds the lease of the sweep: somebody may sweep by SQL, without a lease.
pub async fn unswept(db: &Changefeed, feed: &FeedName) -> Result<Vec<Finding>> {
    if !db.needs_sweeping() {
        return Ok(Vec::new());
    }
    let leases = db.lease_holders().await?;
    let mine = |one: &Waiting| one.feed == *feed && holder(&one.state, &leases).is_none();
    let still = standing_still(db, BRIEF, mine).await?;
    Ok(still.iter().map(|one| one.finding(&leases)).collect())
}

/// A shard with changes that wait for their number.
struct Waiting {
    feed: FeedName,
    state: ShardState,
}

/// The shards of interest that had changes waiting, and gave no number for as long as this.
async fn standing_still(
    db: &Changefeed,
    patience: Duration,
    of_interest: impl Fn(&Waiting) -> bool,
) -> Result<Vec<Waiting>> {
    let began = Instant::now();
    let mut still = waiting(db).await?;
    still.retain(of_interest);
    while !still.is_empty() && began.elapsed() < patience {
        tokio::time::sleep(PAUSE).await;
        let now = waiting(db).await?;
        still.retain(|then| {
            now.iter().any(|now| {
                now.feed == then.feed
                    && now.state.shard == then.state.shard
                    && now.state.last == then.state.last
            })
        });
    }
    Ok(still)
}

/// The shards with changes that wait for their number.
async fn waiting(db: &Changefeed) -> Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    for feed in db.feeds().await? {
        match feed.shard_states().await {
            Ok(states) => waiting.extend(states.into_iter().filter(|state| state.pending > 0).map(
                |state| Waiting {
                    feed: feed.definition().name.clone(),
                    state,
                },
            )),
            // What is broken about it is another finding.
            Err(error) if error.kind() != Kind::Unavailable => {}
            Err(error) => return Err(error),
        }
    }
    Ok(waiting)
}

/// Who should sweep a shard.
fn holder<'a>(state: &ShardState, leases: &'a [LeaseHolder]) -> Option<&'a LeaseHolder> {
    let lease = format!("sweep/{}", state.sweep_group);
    leases
        .iter()
        .find(|l| l.name == lease && l.expires_in_ms > 0)
}

impl Waiting {
    fn finding(&self, leases: &[LeaseHolder]) -> Finding {
        let state = &self.state;
        let (who, advice) = match holder(state, leases) {
            Some(held) => (
                format!("although {} holds the lease of its sweep group", held.owner),
                "look for another finding about this shard, and whether that process works"
                    .to_owned(),
            ),
            None => (
                "and nobody sweeps its group".to_owned(),
                format!(
                    "run `changefeed serve` or `changefeed sweep --group {}`",
                    state.sweep_group
                ),
            ),
        };
        Finding::new(
            Severity::Warning,
            format!("feed {}", self.feed),
            format!(
                "{} changes of shard {} wait and get no numbers, {who}",
                state.pending, state.shard
            ),
            advice,
        )
    }
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
    use changefeed_core::{Cursor, ShardId, SweepGroup};

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
        let waiting = Waiting {
            feed: "f".parse().unwrap(),
            state,
        };
        let nobody = waiting.finding(&[lease("sweep/7", -1), lease("sweep/0", 500)]);
        assert!(nobody.message.ends_with("nobody sweeps its group"));
        assert!(nobody.advice.unwrap().contains("--group 7"));
        let held = waiting.finding(&[lease("sweep/7", 500)]);
        assert!(held.message.contains("although ann holds the lease"));
    }
}
