//! Pages are bounded by bytes, on every store: thousands of rows of 100 KB are many pages, and not one of half
//! a gigabyte.

use std::sync::Arc;

use changefeed_core::{
    After, Content, Feed, NewFeed, PAGE_BYTES, Page, ShardId, Source, Store, SweepGroup, TableName,
    Uuid,
};
use changefeed_testkit::backend::{
    Backend, PostgresBackend, SqliteBackend, captured, on_every_backend,
};
use changefeed_testkit::run;

const ROWS: usize = 300;
const BYTES: usize = 100_000;

fn length(content: &Content) -> usize {
    match content {
        Content::Row(row) => row.get().len(),
        Content::Gone => 0,
        other => panic!("{other:?}"),
    }
}

/// Reads everything and checks that no page is larger than it may be, and none smaller than it could be.
async fn read_all(store: &dyn Store, feed: &Feed) -> usize {
    let room = usize::try_from(PAGE_BYTES).unwrap();
    let mut after = After::First;
    let mut seen = 0;
    loop {
        let page = store.read(feed, ShardId(0), after, 5000).await.unwrap();
        let Page {
            changes,
            next,
            more,
            ..
        } = page;
        let bytes: usize = changes.iter().map(|c| length(&c.content)).sum();
        assert!(bytes <= room, "a page of {bytes} bytes");
        assert!(bytes + 2 * BYTES > room || !more, "a page of {bytes} bytes");
        seen += changes.len();
        after = next.into();
        if !more {
            return seen;
        }
    }
}

async fn sweep(store: &dyn Store) {
    if store.needs_sweeping() {
        store.sweep(SweepGroup(0)).await.unwrap();
    }
}

#[test]
fn a_page_of_large_rows_ends_by_its_bytes() {
    run(on_every_backend(async |backend: Arc<dyn Backend>| {
        let store = backend.store().await;
        store.migrate().await.unwrap();
        let session = backend.try_session().await.unwrap();
        session
            .run("create table t (id integer primary key, v text)")
            .await;
        let new = captured("large", TableName::unqualified("t"), None, 1);
        let feed = store.create_feed(&new).await.unwrap();
        let value = "x".repeat(BYTES);
        for id in 1..=ROWS {
            session
                .run(&format!("insert into t (id, v) values ({id}, '{value}')"))
                .await;
        }
        sweep(&*store).await;
        assert_eq!(read_all(&*store, &feed).await, ROWS);
        // The number of changes counts, too.
        let page = store
            .read(&feed, ShardId(0), After::First, 3)
            .await
            .unwrap();
        assert_eq!((page.changes.len(), page.more), (3, true));
        // One change is read however large it is.
        let huge = "x".repeat(usize::try_from(PAGE_BYTES).unwrap() + 1);
        session
            .run(&format!(
                "delete from t; insert into t (id, v) values (1, '{huge}')"
            ))
            .await;
        sweep(&*store).await;
        let page = store
            .read(&feed, ShardId(0), After::First, 5000)
            .await
            .unwrap();
        assert_eq!((page.changes.len(), page.more), (1, true));
        let page = store
            .read(&feed, ShardId(0), page.next.into(), 5000)
            .await
            .unwrap();
        // All of the others are gone, up to the insert of the large one.
        assert_eq!((page.changes.len(), page.more), (2 * ROWS - 1, true));
    }));
}

#[test]
fn a_page_of_large_rows_with_ulids_ends_by_its_bytes() {
    run(async {
        let backends: [(Arc<dyn Backend>, &str, &str); 2] = [
            (Arc::new(SqliteBackend::fresh().await), "blob", "x'"),
            (Arc::new(PostgresBackend::fresh().await), "bytea", r"'\x"),
        ];
        for (backend, kind, quote) in backends {
            let store = backend.store().await;
            store.migrate().await.unwrap();
            let session = backend.try_session().await.unwrap();
            session
                .run(&format!(
                    "create table u (shard integer, ulid {kind}, v text, primary key (shard, ulid))"
                ))
                .await;
            let new = NewFeed {
                source: Some(Source::Ulid {
                    feed: Uuid::from_u128(1),
                    table: TableName::unqualified("u"),
                    shard_column: "shard".to_owned(),
                    ulid_column: "ulid".to_owned(),
                }),
                ..NewFeed::new("large".parse().unwrap())
            };
            let feed = store.create_feed(&new).await.unwrap();
            let value = "x".repeat(BYTES);
            for id in 1..=ROWS {
                session
                    .run(&format!(
                        "insert into u values (0, {quote}{id:032x}', '{value}')"
                    ))
                    .await;
            }
            assert_eq!(read_all(&*store, &feed).await, ROWS);
            let page = store
                .read(&feed, ShardId(0), After::First, ROWS)
                .await
                .unwrap();
            assert!(page.more);
            let page = store
                .read(&feed, ShardId(0), After::First, 3)
                .await
                .unwrap();
            assert_eq!((page.changes.len(), page.more), (3, true));
        }
    });
}
