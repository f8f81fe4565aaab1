//! Leases: owner, generation, expiry, judged by the database's clock.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinSet;

use crate::backend::Backend;
use crate::eventually;

const LONG: Duration = Duration::from_secs(600);

/// The same owner may renew; nobody else gets it.
pub async fn one_owner_at_a_time(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let lease = a.lease("sweep/0", "a", LONG).await.unwrap().unwrap();
    assert_eq!(
        (lease.name.as_str(), lease.owner.as_str()),
        ("sweep/0", "a")
    );
    assert_eq!(b.lease("sweep/0", "b", LONG).await.unwrap(), None);
    let renewed = a.lease("sweep/0", "a", LONG).await.unwrap().unwrap();
    assert_eq!(
        renewed.generation, lease.generation,
        "a renewal is no change"
    );
    // Another name is another lease.
    assert!(b.lease("sweep/1", "b", LONG).await.unwrap().is_some());
    let mut holders = b.lease_holders().await.unwrap();
    holders.sort_by(|x, y| x.name.cmp(&y.name));
    let seen: Vec<(&str, &str)> = holders
        .iter()
        .map(|h| (h.name.as_str(), h.owner.as_str()))
        .collect();
    assert_eq!(seen, [("sweep/0", "a"), ("sweep/1", "b")]);
    assert!(holders[0].expires_in_ms > 500_000);
}

/// Not a moment before; and the one who lost it can see that by the generation.
pub async fn only_an_expired_lease_changes_hands_and_its_generation_grows(
    backend: Arc<dyn Backend>,
) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let ttl = Duration::from_millis(300);
    // Connecting is not what is measured.
    a.lease("another", "a", ttl).await.unwrap();
    // By the clock that the database goes by: the other one stands still while a machine is suspended.
    let (asked, day) = (Instant::now(), SystemTime::now());
    let first = a.lease("l", "a", ttl).await.unwrap().unwrap();
    let second = eventually("b takes over", || async {
        b.lease("l", "b", LONG).await.unwrap()
    })
    .await;
    assert!(day.elapsed().unwrap() >= ttl, "taken before it expired");
    assert!(second.generation > first.generation);
    assert!(!first.is_trusted(asked + ttl));
    assert_eq!(a.lease("l", "a", LONG).await.unwrap(), None);
}

/// And its next life has another generation.
pub async fn a_released_lease_is_free_at_once(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let first = a.lease("l", "a", LONG).await.unwrap().unwrap();
    a.release(&first).await.unwrap();
    let second = b.lease("l", "b", LONG).await.unwrap().unwrap();
    assert!(
        second.generation > first.generation,
        "{} after {}",
        second.generation,
        first.generation
    );
    a.release(&first).await.unwrap();
    assert_eq!(a.lease("l", "a", LONG).await.unwrap(), None);
}

/// A process that slept through its expiry.
pub async fn a_zombie_cannot_release_what_it_lost(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let lost = a
        .lease("l", "a", Duration::from_millis(50))
        .await
        .unwrap()
        .unwrap();
    let held = eventually("b takes over", || async {
        b.lease("l", "b", LONG).await.unwrap()
    })
    .await;
    a.release(&lost).await.unwrap();
    let renewed = b.lease("l", "b", LONG).await.unwrap().unwrap();
    assert_eq!(renewed.generation, held.generation);
    // Nor what it held in an earlier life under the same name.
    b.release(&held).await.unwrap();
    let again = b.lease("l", "b", LONG).await.unwrap().unwrap();
    b.release(&held).await.unwrap();
    assert_eq!(a.lease("l", "a", LONG).await.unwrap(), None);
    assert!(again.generation > held.generation);
}

/// All ask at the same moment.
pub async fn twenty_candidates_one_holder(backend: Arc<dyn Backend>) {
    backend.installed().await;
    let mut all = JoinSet::new();
    for n in 0..20 {
        let store = backend.store().await;
        all.spawn(async move { store.lease("l", &format!("owner-{n}"), LONG).await.unwrap() });
    }
    let mut holders = 0;
    while let Some(lease) = all.join_next().await {
        holders += usize::from(lease.unwrap().is_some());
    }
    assert_eq!(holders, 1);
}

/// Those of the owner first, then a few of the free ones; never one of somebody else's.
pub async fn many_leases_are_taken_and_renewed_in_one_call(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let names: Vec<String> = (0..6).map(|n| format!("push/s/{n}")).collect();
    let generations = |mut leases: Vec<changefeed_core::Lease>| {
        leases.sort_by(|x, y| x.name.cmp(&y.name));
        let shown = leases.into_iter().map(|l| (l.name, l.generation));
        shown.collect::<Vec<_>>()
    };
    let theirs = b.lease(&names[1], "b", LONG).await.unwrap().unwrap();
    let first = a.leases(&names, "a", LONG, 2).await.unwrap();
    assert_eq!(first.len(), 2, "two of those that are free: {first:?}");
    let second = generations(a.leases(&names, "a", LONG, 100).await.unwrap());
    assert_eq!(second.len(), 5, "{second:?}");
    assert!(second.iter().all(|(name, _)| *name != names[1]));
    let renewed = generations(a.leases(&names, "a", LONG, 0).await.unwrap());
    assert_eq!(renewed, second, "a renewal is no change");
    assert_eq!(b.leases(&names[2..], "b", LONG, 9).await.unwrap(), []);
    assert_eq!(a.leases(&[], "a", LONG, 9).await.unwrap(), []);

    // What is given back or has expired is free, and comes with another generation.
    b.release(&theirs).await.unwrap();
    let ttl = Duration::from_millis(300);
    let short = a.leases(&names[..3], "a", ttl, 9).await.unwrap();
    assert_eq!(short.len(), 3);
    let taken = eventually("b takes over", || async {
        let taken = b.leases(&names[..3], "b", LONG, 9).await.unwrap();
        (taken.len() == 3).then_some(taken)
    })
    .await;
    for lease in taken {
        let before = short.iter().find(|l| l.name == lease.name).unwrap();
        assert!(lease.generation > before.generation, "{lease:?}");
    }
    assert_eq!(a.leases(&names[..3], "a", LONG, 9).await.unwrap(), []);
}
