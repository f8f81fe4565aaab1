//! A database with the table `event`.

use std::time::Duration;

use changefeed_core::{SchemaStore, Ulid, UlidOptions, UlidStore};
use changefeed_sqlserver::{SqlServerStore, UlidTransaction};
use changefeed_testkit::backend::{Backend, Session, SqlServerBackend, SqlServerSession};
use changefeed_testkit::ulids::FEED;

/// Silence after which a holder is judged dead here: long enough for a machine that has much else
/// to do.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);

/// What `begin_ulid` is asked for in shard 0.
pub(crate) fn options() -> UlidOptions {
    UlidOptions {
        timeout: TIMEOUT,
        wait: Duration::from_secs(100),
        ..UlidOptions::new(FEED, 0)
    }
}

/// The same in T-SQL.
pub(crate) fn begin() -> String {
    let (timeout, wait) = (TIMEOUT.as_millis(), 100_000);
    format!(
        "begin transaction; \
         exec changefeed.begin_ulid_transaction '{FEED}', 0, {timeout}, null, {wait}"
    )
}

/// Writes a row in T-SQL.
pub(crate) fn row(note: &str) -> String {
    format!(
        "declare @ulid binary(16); exec changefeed.new_ulid @ulid = @ulid output; \
         insert into event (shard, ulid, note) values (0, @ulid, '{note}')"
    )
}

pub(crate) const COMMIT: &str = "exec changefeed.commit_ulid_transaction; commit transaction";

pub(crate) struct Scene {
    pub(crate) backend: SqlServerBackend,
    pub(crate) store: SqlServerStore,
    pub(crate) admin: Box<dyn Session>,
}

pub(crate) async fn scene() -> Scene {
    let backend = SqlServerBackend::fresh().await;
    let store = SqlServerStore::connect(&backend.url()).await.unwrap();
    store.migrate().await.unwrap();
    let admin = (&backend as &dyn Backend).session().await;
    admin
        .run(
            "create table event (shard int not null, ulid binary(16) not null, \
             note nvarchar(100) not null, primary key (shard, ulid))",
        )
        .await;
    Scene {
        backend,
        store,
        admin,
    }
}

impl Scene {
    pub(crate) async fn session(&self) -> SqlServerSession {
        SqlServerSession::connect(&self.backend.url())
            .await
            .unwrap()
    }

    /// How often the lock of shard 0 was burned.
    pub(crate) async fn incidents(&self) -> i64 {
        let all = self.store.incidents().await.unwrap();
        assert!(all.iter().all(|i| i.feed == FEED && i.shard == 0));
        all.iter().map(|i| i.count).sum()
    }

    /// The notes that are committed, by ULID.
    pub(crate) async fn notes(&self) -> Vec<String> {
        let rows = self.admin.query("select note from event order by ulid");
        rows.await
            .unwrap()
            .into_iter()
            .flatten()
            .flatten()
            .collect()
    }
}

/// Runs what must work.
pub(crate) async fn run_all(session: &SqlServerSession, batches: &[&str]) {
    for sql in batches {
        if let Err(error) = session.execute(sql).await {
            panic!("{error}\nin {sql}");
        }
    }
}

/// What a batch is refused with: its number and words.
pub(crate) async fn refused(session: &SqlServerSession, sql: &str) -> String {
    let answer = session.execute(sql).await;
    answer
        .err()
        .unwrap_or_else(|| panic!("not refused: {sql}"))
        .message
}

/// Writes one row in an open transaction.
pub(crate) async fn insert(transaction: &mut UlidTransaction, note: &str) -> Ulid {
    let ulid = transaction.next_ulid().unwrap();
    transaction
        .execute(
            "insert into event (shard, ulid, note) values (0, @P1, @P2)",
            &[&ulid.to_bytes().as_slice(), &note],
        )
        .await
        .unwrap();
    ulid
}

/// Writes one row in a transaction of its own.
pub(crate) async fn write(store: &SqlServerStore, note: &str) -> Ulid {
    let mut transaction = store.begin_ulid(&options()).await.unwrap();
    let ulid = insert(&mut transaction, note).await;
    transaction.commit().await.unwrap();
    ulid
}
