//! Tokens of the HTTP interface, and what instances know of each other.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{Announcement, Kind, NewToken, Scope, Tallies, Tally, TokenDigest, TokenId};

use crate::backend::Backend;
use crate::eventually;

fn new(id: &str, expires_after: Option<Duration>) -> NewToken {
    NewToken {
        id: id.parse().unwrap(),
        name: "shop".to_owned(),
        digest: TokenDigest([7; 32]),
        scopes: vec![Scope::ReadFeed("orders".parse().unwrap()), Scope::Operate],
        expires_after,
    }
}

/// Every instance sees it, and sees that it was taken back.
pub async fn a_token_is_kept_without_its_secret_until_it_is_revoked(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    assert!(a.tokens().await.unwrap().is_empty());
    let created = a.create_token(&new("abcdefghij12", None)).await.unwrap();
    assert!(created.is_valid() && created.expires_at.is_none());
    let seen = b.tokens().await.unwrap().remove(0);
    assert_eq!(seen.digest, TokenDigest([7; 32]));
    assert_eq!(Scope::list(&seen.scopes), "read:orders operate");
    assert!(seen.created_at.ends_with('Z') && seen.created_at.contains('T'));

    let id: TokenId = "abcdefghij12".parse().unwrap();
    assert!(b.revoke_token(&id).await.unwrap());
    assert!(!b.revoke_token(&id).await.unwrap(), "it is revoked once");
    let other: TokenId = "000000000000".parse().unwrap();
    assert!(!b.revoke_token(&other).await.unwrap());
    let seen = a.tokens().await.unwrap().remove(0);
    assert!(!seen.is_valid() && seen.revoked_at.is_some());
}

/// The database's clock says when.
pub async fn a_token_ends_when_its_time_is_over(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let long = Some(Duration::MAX);
    assert!(
        store
            .create_token(&new("aaaaaaaaaaaa", long))
            .await
            .unwrap()
            .is_valid()
    );
    let short = Some(Duration::from_millis(300));
    store
        .create_token(&new("bbbbbbbbbbbb", short))
        .await
        .unwrap();
    eventually("the token has ended", || async {
        let tokens = store.tokens().await.unwrap();
        (tokens.iter().filter(|t| t.expired).count() == 1).then_some(())
    })
    .await;
}

/// Names and scopes that make no sense are refused.
pub async fn a_token_that_allows_nothing_is_refused(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let mut nothing = new("abcdefghij12", None);
    nothing.scopes.clear();
    let mut unnamed = new("abcdefghij12", None);
    unnamed.name = "a b".to_owned();
    for bad in [nothing, unnamed] {
        let refused = store.create_token(&bad).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid);
    }
    assert!(store.tokens().await.unwrap().is_empty());
}

/// An instance is seen by all until it says goodbye or falls silent.
pub async fn instances_see_each_other(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let long = Duration::from_secs(600);
    let mut tallies = Tallies::default();
    let tally = Tally {
        success: 3,
        failure: 1,
    };
    tallies.triggers.insert("orders".to_owned(), tally);
    let announcement = |name: &str| Announcement {
        name: name.to_owned(),
        roles: vec!["sweep".to_owned(), "http".to_owned()],
        address: Some("127.0.0.1:8787".to_owned()),
        version: "1".to_owned(),
        tallies: tallies.clone(),
    };
    a.announce(&announcement("a"), long).await.unwrap();
    b.announce(&announcement("b"), long).await.unwrap();
    a.announce(&announcement("a"), long).await.unwrap();
    let all = b.instances().await.unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].name.as_str(), all[1].name.as_str()), ("a", "b"));
    assert_eq!(all[0].roles, ["sweep", "http"]);
    assert_eq!(all[0].tallies, tallies);
    assert!(all[0].up_ms >= all[0].seen_ms && all[0].seen_ms >= 0);

    b.withdraw("b").await.unwrap();
    assert_eq!(a.instances().await.unwrap().len(), 1);
    // One that is not heard of is forgotten by the others.
    eventually("the silent one is forgotten", || async {
        let soon = Duration::from_millis(1);
        b.announce(&announcement("b"), soon).await.unwrap();
        let names: Vec<String> = b
            .instances()
            .await
            .unwrap()
            .into_iter()
            .map(|i| i.name)
            .collect();
        (names == ["b"]).then_some(())
    })
    .await;
    assert!(b.connections().most > 0 && b.connections().open > 0);
}
