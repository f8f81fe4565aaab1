//! Emptying what was kept of a row, whatever its key is.

use std::sync::Arc;

use changefeed_core::{Erased, Store, TableName};
use changefeed_testkit::backend::{Backend, PostgresBackend, captured, read_all, settle};
use changefeed_testkit::events::everything;
use changefeed_testkit::run;

async fn with_images(store: &dyn Store, table: &str) -> changefeed_core::Feed {
    let mut new = captured(table, TableName::unqualified(table), None, 1);
    assert!(new.source.as_mut().unwrap().keep_images(true));
    store.create_feed(&new).await.unwrap()
}

async fn erase(store: &dyn Store, table: &str, key: &[(&str, &str)]) -> Erased {
    let key: Vec<(String, String)> = key
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    store
        .erase(&TableName::unqualified(table), &key)
        .await
        .unwrap()
}

/// As the server writes it, as readers see it, or as people do.
#[test]
fn a_key_may_be_written_in_every_way() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create domain positive as numeric(8, 3) check (value > 0)")
            .await;
        app.run("create type mood as enum ('fine', 'bad')").await;
        for (n, (kind, stored, ways)) in [
            (
                "timestamptz",
                "2026-01-01 05:00+00",
                vec![
                    "2026-01-01T05:00:00+00:00",
                    "2026-01-01 05:00:00+00",
                    "2026-01-01 07:00:00+02",
                ],
            ),
            (
                "uuid",
                "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                vec!["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
            ),
            ("character(4)", "ab", vec!["ab", "ab  "]),
            ("boolean", "t", vec!["t", "true"]),
            ("double precision", "1e20", vec!["1e+20", "1e20"]),
            ("bytea", "\\x00FF", vec!["\\x00ff", "\\x00FF"]),
            ("integer[]", "{1,2}", vec!["{1,2}", "{1, 2}"]),
            ("positive", "1.5", vec!["1.500", "1.5"]),
            ("mood", "fine", vec!["fine"]),
            ("date", "2026-02-03", vec!["2026-02-03", "20260203"]),
        ]
        .into_iter()
        .enumerate()
        {
            for (m, way) in ways.into_iter().enumerate() {
                let table = format!("t{n}_{m}");
                app.run(&format!(
                    "create table {table} (id {kind} primary key, v text)"
                ))
                .await;
                let feed = with_images(&*store, &table).await;
                let trigger = everything(&table, &table);
                store.create_trigger(&trigger, false).await.unwrap();
                app.run(&format!(
                    "insert into {table} values ('{stored}', 'secret')"
                ))
                .await;
                app.run("update changefeed.event set state = 'd', due_at = null")
                    .await;
                settle(&*store, changefeed_core::SweepGroup(0)).await;
                let erased = erase(&*store, &table, &[("id", way)]).await;
                assert_eq!((erased.changes, erased.events), (1, 1), "{kind} {way}");
                let change = &read_all(&*store, &feed, 0, 10).await[0];
                assert_eq!(change.content.row().unwrap().get(), "{}");
            }
        }
    });
}

/// A value that its column would cut or round is not the value of another row.
#[test]
fn no_other_row_is_erased() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let store = backend.installed().await;
        let app = backend.session().await;
        for (n, (kind, stored, other)) in [
            ("character(4)", "abcd", "abcdefg"),
            ("varchar(4)", "abcd", "abcdefg"),
            ("numeric(8, 1)", "1.6", "1.55"),
            ("integer", "2", "1.5"),
            (
                "timestamp(0)",
                "2026-01-01 00:00:01",
                "2026-01-01 00:00:00.7",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let table = format!("t{n}");
            app.run(&format!(
                "create table {table} (id {kind} primary key, v text)"
            ))
            .await;
            with_images(&*store, &table).await;
            app.run(&format!("insert into {table} values ('{stored}', 'kept')"))
                .await;
            let erased = erase(&*store, &table, &[("id", other)]).await;
            assert_eq!(erased, Erased::default(), "{kind} {other}");
        }
    });
}

/// Its images are found by what they hold.
#[test]
fn a_row_is_found_after_its_table_got_another_key() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table people (id int primary key, at timestamptz not null, v text)")
            .await;
        with_images(&*store, "people").await;
        app.run(
            "insert into people values (1, '2026-01-01Z', 'secret'), (2, '2026-01-02Z', 'other')",
        )
        .await;
        app.run("update people set v = 'secret too' where id = 1")
            .await;
        app.run("alter table people drop constraint people_pkey, add primary key (at)")
            .await;
        let erased = erase(&*store, "people", &[("at", "2026-01-01 00:00:00+00")]).await;
        assert_eq!(erased.changes, 2);
        let left =
            "select count(*) from changefeed.change_row where concat(old, new) like '%secret%'";
        assert_eq!(app.number(left).await, 0);
    });
}
