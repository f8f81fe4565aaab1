//! Emptying what was kept of a row: personal data.

use std::collections::BTreeMap;
use std::sync::Arc;

use changefeed_core::{Erased, Kind, TableName, Verdict};

use serde_json::value::RawValue;

use super::telling::ORDERS;
use crate::backend::{Backend, captured, read_all};
use crate::events::{LEASE, claim, everything, finish, log, shown};

fn key(id: &str) -> Vec<(String, String)> {
    vec![("id".to_owned(), id.to_owned())]
}

/// That something happened to it, and when, stays known; other rows stay as they are.
pub async fn nothing_is_kept_of_a_row_that_is_erased(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let orders = TableName::unqualified("orders");
    let mut new = captured("orders", orders.clone(), None, 1);
    new.source.as_mut().unwrap().keep_images(true);
    let feed = store.create_feed(&new).await.unwrap();
    let trigger = everything("told", "orders");
    let trigger = store.create_trigger(&trigger, false).await.unwrap();
    let words = backend.words();
    let who = words.say("{\"x-user\":\"secret\"}", "00-secret");
    for write in [
        words.begin,
        &who,
        "insert into orders values (4, 1, 'secret')",
        words.said,
        "commit",
        "insert into orders values (44, 4, 'other')",
        "update orders set note = 'secret too' where id = 4",
        "delete from orders where id = 4",
    ] {
        session.run(write).await;
    }
    backend.settle(&*store).await;
    let first = store.erase(&orders, &key("4")).await.unwrap();
    let expected = Erased {
        changes: 3,
        events: 0,
        pending: 3,
    };
    assert_eq!(first, expected);
    for event in claim(&*store, &trigger, 10, "me", LEASE).await {
        finish(&*store, &event, Verdict::Delivered).await;
    }
    let again = store.erase(&orders, &key("4")).await.unwrap();
    assert_eq!((again.events, again.pending), (3, 0));
    let mut kept = String::new();
    for change in read_all(&*store, &feed, 0, 10).await {
        change.write_json(&mut kept);
    }
    for event in log(&*store).await {
        kept.push_str(&format!("{:?}", event.event));
        let is_other = format!("{:?}", event.event).contains("other");
        let (_, attempts) = shown(&*store, event.event.id).await;
        assert_eq!(attempts.len(), 1);
        assert_eq!(attempts[0].attempt.request.is_some(), is_other);
        assert_eq!(attempts[0].attempt.response.is_some(), is_other);
    }
    assert!(!kept.contains("secret"), "{kept}");
    assert!(kept.contains("other"), "{kept}");
    for op in ["insert", "update", "delete"] {
        assert!(kept.contains(&format!("\"op\":\"{op}\"")), "{kept}");
    }
}

/// In the form that readers see it in, and in no other row's.
pub async fn a_key_is_erased_as_it_is_shown(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run(
            "create table line (\"it's a {key}\" varchar(40) not null, price decimal(10, 2) not null, \
             number bigint not null, weight double precision not null, note varchar(40), \
             primary key (number, \"it's a {key}\", price, weight))",
        )
        .await;
    let table = TableName::unqualified("line");
    let mut new = captured("lines", table.clone(), None, 1);
    new.source.as_mut().unwrap().keep_images(true);
    let feed = store.create_feed(&new).await.unwrap();
    let trigger = everything("told", "line");
    let trigger = store.create_trigger(&trigger, false).await.unwrap();
    session
        .run(
            "insert into line values ('quo\"te \\ ü🙂', 1.5, -9007199254740993, 0.1, 'secret'), \
             ('5', 1.25, 5, 1e20, 'secret'), ('05', 1.25, 5, 1e20, 'other')",
        )
        .await;
    backend.settle(&*store).await;
    for event in claim(&*store, &trigger, 10, "me", LEASE).await {
        finish(&*store, &event, Verdict::Delivered).await;
    }
    for change in read_all(&*store, &feed, 0, 10).await.iter().take(2) {
        let shown: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(change.key.as_ref().unwrap().get()).unwrap();
        let key: Vec<(String, String)> = shown
            .into_iter()
            .map(|(name, value)| {
                let text = serde_json::from_str(value.get());
                (name, text.unwrap_or_else(|_| value.get().to_owned()))
            })
            .collect();
        let erased = store.erase(&table, &key).await.unwrap();
        assert_eq!((erased.changes, erased.events), (1, 1), "{key:?}");
    }
    let mut kept = String::new();
    for change in read_all(&*store, &feed, 0, 10).await {
        change.write_json(&mut kept);
    }
    for event in log(&*store).await {
        kept.push_str(&format!("{:?}", event.event));
    }
    assert!(!kept.contains("secret"), "{kept}");
    assert!(kept.contains("other"), "{kept}");
}

/// Half a key is many rows.
pub async fn only_a_whole_key_is_erased(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    backend.session().await.run(ORDERS).await;
    let orders = TableName::unqualified("orders");
    for wrong in [
        vec![],
        [key("1"), key("2")].concat(),
        vec![("note".to_owned(), "a".to_owned())],
    ] {
        let error = store.erase(&orders, &wrong).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
        assert!(error.message().contains("has the columns id"), "{error:?}");
    }
    let nothing = store.erase(&orders, &key("it's \"nothing\"")).await;
    assert_eq!(nothing.unwrap(), Erased::default());
    let missing = store
        .erase(&TableName::unqualified("missing"), &key("1"))
        .await;
    assert_eq!(missing.unwrap_err().kind(), Kind::NotFound);
}
