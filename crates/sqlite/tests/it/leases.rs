//! Leases.

use std::time::Duration;

use changefeed_core::LeaseStore;

use crate::support::Lab;

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_lease_has_one_owner_and_a_generation_that_grows_with_each() {
    let lab = Lab::new().await;
    let other = lab.other().await;
    let mine = lab
        .store
        .lease("sweep/0", "me", LONG)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(mine.generation, 1);
    assert!(other.lease("sweep/0", "you", LONG).await.unwrap().is_none());
    assert!(other.lease("sweep/1", "you", LONG).await.unwrap().is_some());
    let renewed = lab
        .store
        .lease("sweep/0", "me", LONG)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(renewed.generation, 1);
    let holders = lab.store.lease_holders().await.unwrap();
    assert_eq!(holders.len(), 2);
    assert_eq!(
        (holders[0].name.as_str(), holders[0].owner.as_str()),
        ("sweep/0", "me")
    );
    // The clock is a fraction of days, and not exact to the millisecond.
    assert!((1..=600_010).contains(&holders[0].expires_in_ms));
    // It expires, by the database's clock.
    lab.app()
        .execute_batch("update changefeed_lease set expires_at = expires_at - 601000")
        .unwrap();
    assert!(lab.store.lease_holders().await.unwrap()[0].expires_in_ms < 0);
    let yours = other.lease("sweep/0", "you", LONG).await.unwrap().unwrap();
    assert_eq!(yours.generation, 2);
    // The old owner cannot give back what is no longer his.
    lab.store.release(&renewed).await.unwrap();
    assert!(
        lab.store
            .lease("sweep/0", "me", LONG)
            .await
            .unwrap()
            .is_none()
    );
    other.release(&yours).await.unwrap();
    assert_eq!(lab.store.lease_holders().await.unwrap().len(), 1);
    let again = lab
        .store
        .lease("sweep/0", "me", LONG)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(again.generation, 3);
}

#[tokio::test]
async fn of_many_who_ask_one_gets_it() {
    let lab = Lab::new().await;
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..20 {
        let store = lab.other().await;
        asking.spawn(async move { store.lease("l", &format!("owner-{n}"), LONG).await.unwrap() });
    }
    let granted = asking.join_all().await.into_iter().flatten().count();
    assert_eq!(granted, 1);
}
