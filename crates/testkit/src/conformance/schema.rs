//! Installing, refusing, removing.

use std::sync::Arc;

use changefeed_core::{Kind, Migration, SCHEMA_VERSION, SchemaState, TableName};
use tokio::task::JoinSet;

use crate::backend::{Backend, captured};

/// The second time there is nothing to do.
pub async fn migrating_twice_changes_nothing(backend: Arc<dyn Backend>) {
    let store = backend.store().await;
    assert_eq!(store.schema().await.unwrap(), SchemaState::Missing);
    let first = store.migrate().await.unwrap();
    assert_eq!(
        first,
        Migration {
            from: 0,
            to: SCHEMA_VERSION
        }
    );
    assert_eq!(
        store.schema().await.unwrap(),
        SchemaState::At(SCHEMA_VERSION)
    );
    let again = store.migrate().await.unwrap();
    assert_eq!(
        again,
        Migration {
            from: SCHEMA_VERSION,
            to: SCHEMA_VERSION
        }
    );
}

/// As when a deployment starts all its instances together.
pub async fn twenty_instances_migrate_at_once(backend: Arc<dyn Backend>) {
    let mut stores = Vec::new();
    for _ in 0..20 {
        stores.push(backend.store().await);
    }
    let mut all = JoinSet::new();
    for store in stores {
        all.spawn(async move { store.migrate().await });
    }
    let mut installed = 0;
    while let Some(outcome) = all.join_next().await {
        if outcome.unwrap().unwrap().from == 0 {
            installed += 1;
        }
    }
    assert_eq!(installed, 1, "exactly one of them did the work");
    let (store, feed) = backend.feed(37, 1).await;
    let session = backend.session().await;
    session.run(&backend.words().publish(37, 0, 1)).await;
    backend.settle(&*store).await;
    assert_eq!(crate::backend::ids(&*store, &feed, 0).await, [1]);
}

/// An old program must not touch what it does not understand.
pub async fn a_newer_schema_is_refused_and_left_alone(backend: Arc<dyn Backend>) {
    backend.installed().await;
    let session = backend.session().await;
    session.run(backend.words().install_newer).await;
    let store = backend.store().await;
    assert_eq!(store.schema().await.unwrap(), SchemaState::At(999));
    for error in [
        store.migrate().await.unwrap_err(),
        store.feeds().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::SchemaTooNew);
        assert_eq!(
            error.message(),
            format!(
                "the database has changefeed schema 999, this program knows only {SCHEMA_VERSION}"
            )
        );
        assert_eq!(
            error.advice(),
            Some("use a newer changefeed program; nothing was changed")
        );
    }
    assert_eq!(store.schema().await.unwrap(), SchemaState::At(999));
}

/// The sentence a person needs who starts before migrating.
pub async fn without_our_tables_the_command_to_run_is_named(backend: Arc<dyn Backend>) {
    let store = backend.store().await;
    for error in [
        store.feeds().await.unwrap_err(),
        store.consumers().await.unwrap_err(),
        store.sweep_groups().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::SchemaMissing, "{error:?}");
        assert_eq!(
            error.message(),
            "changefeed is not installed in this database"
        );
        assert_eq!(error.advice(), Some("run `changefeed migrate`"));
    }
    // The same instance works once somebody has migrated.
    backend.store().await.migrate().await.unwrap();
    assert!(store.feeds().await.unwrap().is_empty());
}

/// No trigger of ours may stay behind on a table of the application.
pub async fn uninstalling_leaves_the_application_as_it_was(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run("create table orders (id integer primary key, note text)")
        .await;
    store
        .create_feed(&captured(
            "orders",
            TableName::unqualified("orders"),
            None,
            1,
        ))
        .await
        .unwrap();
    session.run("insert into orders values (1, 'a')").await;
    store.uninstall().await.unwrap();
    assert_eq!(store.schema().await.unwrap(), SchemaState::Missing);
    session.run("insert into orders values (2, 'b')").await;
    session.run("update orders set note = 'c'").await;
    session.run("delete from orders where id = 1").await;
    assert_eq!(session.number("select count(*) from orders").await, 1);
    // Nothing is in the way of a fresh start.
    store.migrate().await.unwrap();
    assert!(store.feeds().await.unwrap().is_empty());
    store.uninstall().await.unwrap();
    store.uninstall().await.unwrap();
}
