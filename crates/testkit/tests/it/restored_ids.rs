//! The ids of events in a database that was restored from a backup: what was pending keeps its id,
//! and what comes later never gets one that another event has had.

use std::sync::Arc;

use changefeed_core::{EventId, Redelivery, Store, TriggerDefinition};
use changefeed_postgres::PostgresStore;
use changefeed_sqlite::SqliteStore;
use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::events::{everything, key, log};
use changefeed_testkit::postgres::{empty_database, fresh_database, program};
use changefeed_testkit::run;

fn definition() -> TriggerDefinition {
    let mut definition = everything("t", "orders");
    definition.capture.manual = true;
    definition
}

async fn ids(store: &dyn Store) -> Vec<(i64, EventId)> {
    let events = log(store).await;
    events
        .iter()
        .map(|e| (e.event.change_id, e.event.id))
        .collect()
}

/// The events before and after the backup, in the database that went on and in the one restored.
async fn are_told_apart(original: &dyn Store, restored: &dyn Store) {
    let (went_on, again) = (ids(original).await, ids(restored).await);
    assert_eq!((went_on.len(), again.len()), (4, 4));
    assert_eq!(went_on[..2], again[..2], "what was pending keeps its id");
    let same_change = went_on[2..]
        .iter()
        .zip(&again[2..])
        .filter(|(a, b)| a.0 == b.0);
    assert_ne!(same_change.count(), 0, "the test gives change ids again");
    let lost = went_on[2..].iter().map(|e| e.1).collect::<Vec<_>>();
    for (_, id) in &again[2..] {
        assert!(!lost.contains(id));
        assert!(restored.event(*id).await.unwrap().is_some());
    }
    // An id of an event that this database has never had names nothing here.
    for id in lost {
        assert!(restored.event(id).await.unwrap().is_none());
        assert!(
            restored
                .redeliver(&Redelivery::Event(id), key())
                .await
                .is_err()
        );
    }
    restored
        .redeliver(&Redelivery::Event(again[0].1), key())
        .await
        .unwrap();
}

async fn invoke(store: &dyn Store) {
    let payload = serde_json::value::RawValue::from_string("{}".into()).unwrap();
    let trigger = store.triggers().await.unwrap().remove(0);
    let id = store
        .invoke_trigger(&trigger, &payload, key())
        .await
        .unwrap();
    assert_eq!(store.event(id).await.unwrap().unwrap().0.event.id, id);
}

#[test]
fn postgres_gives_no_event_id_again_after_a_restore() {
    run(async {
        let database = fresh_database().await;
        let original: Arc<dyn Store> =
            Arc::new(PostgresStore::connect(database.url()).await.unwrap());
        original.migrate().await.unwrap();
        let session = PostgresSession::connect(database.url()).await.unwrap();
        let session: Box<dyn Session> = Box::new(session);
        session
            .run("create table orders (id int primary key)")
            .await;
        original.create_trigger(&definition(), false).await.unwrap();
        session
            .run("insert into orders values (1); delete from orders")
            .await;
        let dump = program("pg_dump")
            .args(["-d", database.url()])
            .output()
            .unwrap();
        assert!(dump.status.success(), "{dump:?}");
        let other = empty_database().await;
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), &dump.stdout).unwrap();
        let loaded = program("psql")
            .args(["-q", "-v", "ON_ERROR_STOP=1", "-d", other.url(), "-f"])
            .arg(script.path())
            .output()
            .unwrap();
        assert!(loaded.status.success(), "{loaded:?}");
        let restored: Arc<dyn Store> = Arc::new(PostgresStore::connect(other.url()).await.unwrap());
        let restored_session: Box<dyn Session> =
            Box::new(PostgresSession::connect(other.url()).await.unwrap());
        for (store, session) in [(&original, &session), (&restored, &restored_session)] {
            session.run("insert into orders values (7)").await;
            invoke(&**store).await;
        }
        are_told_apart(&*original, &*restored).await;
        // What people read says the same.
        let told = restored_session
            .query("select id::text from changefeed.event_log order by change_id")
            .await
            .unwrap();
        let known = ids(&*restored).await;
        for (row, (_, id)) in told.iter().zip(known) {
            assert_eq!(row[0].as_deref(), Some(id.to_string().as_str()));
        }
    });
}

#[test]
fn sqlite_gives_no_event_id_again_after_a_restore() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let sqlite = |file: &str, sql: &str| {
            rusqlite::Connection::open(path(file))
                .unwrap()
                .execute_batch(sql)
                .unwrap();
        };
        let open = async |name: &str| {
            let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path(name)).await.unwrap());
            store
        };
        let original = open("a.db").await;
        original.migrate().await.unwrap();
        sqlite("a.db", "create table orders (id integer primary key)");
        original.create_trigger(&definition(), false).await.unwrap();
        sqlite("a.db", "insert into orders values (1); delete from orders");
        sqlite("a.db", &format!("vacuum into '{}'", path("b.db")));
        let restored = open("b.db").await;
        for (file, store) in [("a.db", &original), ("b.db", &restored)] {
            sqlite(file, "insert into orders values (7)");
            invoke(&**store).await;
        }
        are_told_apart(&*original, &*restored).await;
    });
}
