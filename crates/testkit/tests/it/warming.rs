//! What an instance does before the first request.

use std::sync::Arc;

use changefeed_core::{InstanceStore, Store};
use changefeed_engine::supervisor::{InstanceOptions, Role, Supervisor};
use changefeed_engine::{CancellationToken, Changefeed};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend, eventually_true};
use changefeed_testkit::run;

/// The first readers find connections that are open, and know the statements of the feeds.
#[test]
fn connections_are_open_before_somebody_asks_for_a_page() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        (&backend as &dyn Backend).feed(1, 1).await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        assert!(store.connections().open <= 1);
        let db = Changefeed::new(Arc::new(store.clone()) as Arc<dyn Store>);
        let mut options = InstanceOptions::default();
        options.roles = vec![Role::Http];
        let shutdown = CancellationToken::new();
        let instance = tokio::spawn(Supervisor::new(&db, options, &shutdown).run(None));
        eventually_true("three connections", async || store.connections().open >= 3).await;
        shutdown.cancel();
        instance.await.unwrap().unwrap();
    });
}
