//! Conflict clauses of the application, as watches see them, with and without recursive triggers;
//! and writes by the stock shell.

use changefeed_core::{
    BatchOutcome, TableName, Take, Watch, WatchFrom, WatchSettings, WatchSpec, WatchStore,
};

use crate::support::Lab;

async fn watch(lab: &Lab) -> Watch {
    lab.store
        .open_watch(&WatchSpec {
            name: "f".parse().unwrap(),
            table: TableName::unqualified("t"),
            from: WatchFrom::Now,
            definition: None,
        })
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
