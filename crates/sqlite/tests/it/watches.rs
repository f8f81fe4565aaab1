//! Conflict clauses of the application, as watches see them, with and without recursive triggers;
//! and writes by the stock shell.

use changefeed_core::{
    BatchOutcome, TableName, Take, Watch, WatchFrom, WatchSettings, WatchSpec, WatchStore,
};

use crate::support::Lab;

async fn watch(lab: &Lab) -> Watch {
    lab.store
        .open_watch(&WatchSpec::new(
            "f".parse().unwrap(),
            TableName::unqualified("t"),
        ))
        .await
        .unwrap()
}

/// What a function is handed: `+` for an insert, `~` for an update, `-` for a delete, and the key.
async fn handed(lab: &Lab, watch: &Watch) -> Vec<String> {
    let settings = WatchSettings::default();
    let take = Take {
        owner: "me",
        settings: &settings,
    };
    let mut all = Vec::new();
    while let Some(batch) = lab.store.take(watch, take).await.unwrap() {
        for change in &batch.changes {
            let item: serde_json::Value = serde_json::from_str(change.item.get()).unwrap();
            let sign = ["+", "~", "-"][change.operation.number() as usize];
            all.push(format!("{sign}{}", item["id"]));
        }
        lab.store
            .settle(watch, &batch, &BatchOutcome::Done, &settings)
            .await
            .unwrap();
    }
    all.sort();
    all
}

const ROWS: &str = "insert into t values (1, 'x'), (2, 'y'), (3, 'z')";

#[tokio::test]
async fn every_conflict_clause_is_told_as_what_it_did() {
    for table in [
        "create table t (id integer primary key, u text unique)",
        "create table t (id integer primary key, u text unique) without rowid",
        "create table t (id text primary key collate nocase, u text unique)",
    ] {
        for recursive in ["off", "on"] {
            for (statement, expected) in [
                ("insert or replace into t values (1, 'n')", &["~1"][..]),
                ("insert or replace into t values (9, 'x')", &["+9", "-1"]),
                ("insert or replace into t values (1, 'y')", &["-2", "~1"]),
                ("insert or ignore into t values (1, 'n')", &[]),
                ("insert or ignore into t values (9, 'x')", &[]),
                (
                    "insert into t values (1, 'n') on conflict (id) do update set u = 'm'",
                    &["~1"],
                ),
                ("insert into t values (1, 'n') on conflict do nothing", &[]),
                (
                    "update or replace t set u = 'y' where id = 1",
                    &["-2", "~1"],
                ),
                ("update or replace t set id = 2 where id = 1", &["-1", "~2"]),
                ("update or ignore t set u = 'y' where id = 1", &[]),
                ("update or ignore t set u = 'n' where id = 1", &["~1"]),
                (
                    "insert or ignore into t values (1, 'n'); delete from t where id = 1",
                    &["-1"],
                ),
                ("delete from t", &["-1", "-2", "-3"]),
            ] {
                let lab = Lab::new().await;
                let app = lab.app();
                app.execute_batch(&format!(
                    "pragma recursive_triggers = {recursive}; {table}; {ROWS}"
                ))
                .unwrap();
                let watch = watch(&lab).await;
                app.execute_batch(statement).unwrap();
                let seen: Vec<String> = handed(&lab, &watch)
                    .await
                    .iter()
                    .map(|told| told.replace('"', ""))
                    .collect();
                assert_eq!(
                    seen, expected,
                    "{statement} on {table}, recursive {recursive}"
                );
            }
        }
    }
}

#[tokio::test]
async fn the_stock_shell_writes_to_a_watched_table() {
    let lab = Lab::new().await;
    lab.app()
        .execute_batch("create table t (id integer primary key, u text)")
        .unwrap();
    let watch = watch(&lab).await;
    if lab
        .shell("insert into t (u) values ('a'); select last_insert_rowid(), changes()")
        .is_ok_and(|said| said.trim() == "1|1")
    {
        assert_eq!(handed(&lab, &watch).await, ["+1"]);
    } else {
        panic!("the application's own numbers are disturbed");
    }
}

/// Keys that are equal to the table are one key to us.
#[tokio::test]
async fn keys_are_compared_as_the_table_compares_them() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id text primary key collate nocase, u text)")
        .unwrap();
    let watch = watch(&lab).await;
    app.execute_batch("insert into t values ('A', 'x'); update t set id = 'a'")
        .unwrap();
    assert_eq!(handed(&lab, &watch).await, ["+\"a\""]);
    // A key that is NULL cannot be told from another; its row is written all the same.
    app.execute_batch("insert into t values (null, 'n'); update t set u = 'm' where id is null")
        .unwrap();
    assert!(handed(&lab, &watch).await.is_empty());
}

/// What cannot be read as a text is a key like any other, and keeps nobody waiting.
#[tokio::test]
async fn keys_that_are_not_utf_8_are_handed_over() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id primary key, u)")
        .unwrap();
    let watch = watch(&lab).await;
    app.execute_batch("insert into t values (cast(x'ff' as text), 1), ('z', 1), (x'ff', 1)")
        .unwrap();
    assert_eq!(
        handed(&lab, &watch).await,
        ["+\"\\\\xff\"", "+\"z\"", "+\"\u{fffd}\""]
    );
    app.execute_batch("update t set u = 2; delete from t where id = cast(x'ff' as text)")
        .unwrap();
    assert_eq!(
        handed(&lab, &watch).await,
        ["-\"\u{fffd}\"", "~\"\\\\xff\"", "~\"z\""]
    );
}

/// SQLite's own way to alter a table loses its triggers; an instance at work makes them again.
#[tokio::test]
async fn a_table_that_is_rebuilt_is_watched_on() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, u)")
        .unwrap();
    let watch = watch(&lab).await;
    app.execute_batch("insert into t values (1, 'a')").unwrap();
    assert_eq!(handed(&lab, &watch).await, ["+1"]);
    app.execute_batch(
        "begin; create table new_t (id integer primary key, u, more); \
         insert into new_t select id, u, 'm' from t; drop table t; \
         alter table new_t rename to t; commit",
    )
    .unwrap();
    assert!(handed(&lab, &watch).await.is_empty(), "a look is enough");
    app.execute_batch("update t set u = 'b'; insert into t values (2, 'b', 'n')")
        .unwrap();
    assert_eq!(handed(&lab, &watch).await, ["+2", "~1"]);
    // Another key is another table.
    app.execute_batch("drop table t; create table t (a integer, b integer, primary key (a, b))")
        .unwrap();
    let settings = WatchSettings::default();
    let take = Take {
        owner: "me",
        settings: &settings,
    };
    let error = lab.store.take(&watch, take).await.unwrap_err();
    assert!(error.message().contains("is another than when"), "{error}");
    app.execute_batch("drop table t").unwrap();
    let error = lab.store.take(&watch, take).await.unwrap_err();
    assert!(error.message().contains("was dropped"), "{error}");
}

/// A new unique index is a new way to lose rows by REPLACE.
#[tokio::test]
async fn a_unique_index_that_comes_later_is_followed() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table t (id integer primary key, u text); insert into t values (1, 'x')",
    )
    .unwrap();
    let watch = watch(&lab).await;
    assert!(handed(&lab, &watch).await.is_empty());
    app.execute_batch("create unique index i on t (u)").unwrap();
    assert!(handed(&lab, &watch).await.is_empty());
    app.execute_batch("insert or replace into t values (2, 'x')")
        .unwrap();
    assert_eq!(handed(&lab, &watch).await, ["+2", "-1"]);
}

/// The application fails only until somebody of ours looks. (A connection that has failed goes on
/// failing until it reads something: SQLite does not look for a table anew that a trigger misses.)
#[tokio::test]
async fn deleted_tables_of_ours_are_made_again_by_whoever_is_at_work() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, u)")
        .unwrap();
    let watch = watch(&lab).await;
    for table in [
        "changefeed_changes_1",
        "changefeed_global_state",
        "changefeed_watch_counter",
    ] {
        app.execute_batch("delete from t").unwrap();
        handed(&lab, &watch).await;
        app.execute_batch(&format!("drop table {table}")).unwrap();
        // Whoever asks how it is doing is answered.
        lab.store.watch_status(&watch, 1).await.unwrap();
        assert!(handed(&lab, &watch).await.is_empty());
        app.execute_batch("select * from t; insert into t values (1, 'a')")
            .unwrap();
        assert_eq!(handed(&lab, &watch).await, ["+1"], "without {table}");
        let status = lab.store.watch_status(&watch, 1).await.unwrap();
        assert!(status.idle_ms.is_some_and(|ms| ms < 60_000));
    }
    app.execute_batch("drop table changefeed_global_state; drop table changefeed_changes_1")
        .unwrap();
    assert_eq!(lab.store.watches().await.unwrap().len(), 1);
    lab.store.drop_watch(&watch).await.unwrap();
    app.execute_batch("select * from t; delete from t").unwrap();
}

/// What `doctor` says about a watch.
#[tokio::test]
async fn what_is_wrong_with_a_watch_is_found() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, u)")
        .unwrap();
    let watch = watch(&lab).await;
    let found = async || {
        let findings = lab.store.watch_findings().await.unwrap();
        let about = findings.iter().all(|f| f.subject == "watch f");
        assert!(about && findings.iter().all(|f| f.advice.is_some()));
        let messages: Vec<String> = findings.into_iter().map(|f| f.message).collect();
        messages.join("; ")
    };
    assert_eq!(found().await, "");
    app.execute_batch("drop trigger changefeed_watch_1_update")
        .unwrap();
    assert!(found().await.contains("triggers"), "{}", found().await);
    handed(&lab, &watch).await;
    assert_eq!(found().await, "", "an instance has mended it");
    app.execute_batch("drop table changefeed_changes_1")
        .unwrap();
    assert!(found().await.contains("writes to table t fail"));
    handed(&lab, &watch).await;
    app.execute_batch(&format!("drop table {}", watch.leases_table))
        .unwrap();
    assert!(found().await.contains("its state was deleted"));
    app.execute_batch("drop table t").unwrap();
    assert_eq!(found().await, "its table was dropped");
}

/// An autoscaler that looks when somebody was last at work must not take an idle one for dead.
#[tokio::test]
async fn an_idle_instance_says_that_it_is_there() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, u)")
        .unwrap();
    let watch = watch(&lab).await;
    app.execute_batch("update changefeed_global_state set last_access_time = 0")
        .unwrap();
    assert!(handed(&lab, &watch).await.is_empty());
    let status = lab.store.watch_status(&watch, 0).await.unwrap();
    assert!(status.idle_ms.is_some_and(|ms| ms < 60_000));
}

/// However large the rows are, an instance does not read all of a batch at once.
#[tokio::test]
async fn a_batch_of_large_rows_is_cut() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, u)")
        .unwrap();
    let watch = watch(&lab).await;
    app.execute_batch(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 5) \
         insert into t select i, printf('%.7000000c', 'x') from n",
    )
    .unwrap();
    let settings = WatchSettings::default();
    let take = Take {
        owner: "me",
        settings: &settings,
    };
    let batch = lab.store.take(&watch, take).await.unwrap().unwrap();
    assert_eq!(batch.changes.len(), 2);
    let settled = lab
        .store
        .settle(&watch, &batch, &BatchOutcome::Done, &settings)
        .await;
    assert_eq!(settled.unwrap().rows, 2);
    assert_eq!(handed(&lab, &watch).await, ["+3", "+4", "+5"]);
}

/// Rows with NULL in their key are neither loaded nor waited for.
#[tokio::test]
async fn a_load_passes_keys_that_are_null() {
    let lab = Lab::new().await;
    lab.app()
        .execute_batch(
            "create table t (id text collate nocase, u, primary key (id, u)); \
             insert into t values ('b', 1), ('C', null), ('a', 2), (null, 1), (null, null), \
               (cast(x'ff' as text), 1), ('z', null)",
        )
        .unwrap();
    let spec = WatchSpec {
        from: WatchFrom::Beginning,
        ..WatchSpec::new("f".parse().unwrap(), TableName::unqualified("t"))
    };
    let watch = lab.store.open_watch(&spec).await.unwrap();
    assert_eq!(
        handed(&lab, &watch).await,
        ["+\"a\"", "+\"b\"", "+\"\u{fffd}\""]
    );
    lab.store
        .reset_watch(&watch, WatchFrom::Beginning)
        .await
        .unwrap();
    assert_eq!(handed(&lab, &watch).await.len(), 3);
}
