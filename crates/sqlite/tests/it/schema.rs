//! Installing and removing.

use changefeed_core::{FeedStore, Kind, Migration, SCHEMA_VERSION, SchemaState, SchemaStore};

use crate::support::Lab;

#[tokio::test]
async fn the_printed_script_installs_the_same_from_the_stock_shell() {
    let by_shell = Lab::bare().await;
    by_shell
        .shell(&changefeed_sqlite::migration_script())
        .unwrap();
    let by_us = Lab::new().await;
    let dump = |lab: &Lab| {
        lab.shell("select type, name, sql from sqlite_master order by 1, 2;")
            .unwrap()
    };
    assert_eq!(dump(&by_shell), dump(&by_us));
    assert_eq!(
        by_shell.store.schema().await.unwrap(),
        SchemaState::At(SCHEMA_VERSION)
    );
    assert_eq!(
        by_shell.store.migrate().await.unwrap(),
        Migration {
            from: SCHEMA_VERSION,
            to: SCHEMA_VERSION
        }
    );
    assert_eq!(by_shell.shell("pragma journal_mode;").unwrap(), "wal\n");
    by_shell.feed(1, 1).await;
}

#[tokio::test]
async fn twenty_instances_migrate_at_once() {
    let lab = Lab::bare().await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = lab.other().await;
        all.spawn(async move { store.migrate().await.unwrap().from });
    }
    let installed = all
        .join_all()
        .await
        .into_iter()
        .filter(|from| *from == 0)
        .count();
    assert_eq!(installed, 1);
}

#[tokio::test]
async fn uninstalling_leaves_nothing_and_takes_nothing_else() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table t (id integer primary key, u unique); create table changefeed_mine (x);",
    )
    .unwrap();
    let before = "select count(*) from sqlite_master where name like 'changefeed%'";
    lab.captured("t", Some("u"), 2).await;
    lab.store.uninstall().await.unwrap();
    let left: i64 = app.query_row(before, [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1, "only the application's own table is left");
    app.execute_batch("insert into t values (1, 1); update t set u = 2; delete from t")
        .unwrap();
    lab.store.uninstall().await.unwrap();
    assert_eq!(
        lab.store.feeds().await.unwrap_err().kind(),
        Kind::SchemaMissing
    );
    lab.store.migrate().await.unwrap();
    assert!(lab.store.feeds().await.unwrap().is_empty());
}

#[tokio::test]
async fn tables_removed_or_replaced_behind_our_back_are_noticed() {
    let lab = Lab::new().await;
    assert!(lab.store.feeds().await.unwrap().is_empty());
    lab.other().await.uninstall().await.unwrap();
    assert_eq!(
        lab.store.feeds().await.unwrap_err().kind(),
        Kind::SchemaMissing
    );
    lab.store.migrate().await.unwrap();
    lab.app()
        .execute_batch("update changefeed_schema set version = 99")
        .unwrap();
    let other = lab.other().await;
    assert_eq!(other.feeds().await.unwrap_err().kind(), Kind::SchemaTooNew);
    assert_eq!(
        other.migrate().await.unwrap_err().kind(),
        Kind::SchemaTooNew
    );
}
