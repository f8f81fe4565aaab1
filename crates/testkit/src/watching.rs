//! Watches as tests use them: taking and settling by hand, and functions that note what they get.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    Batch, BatchOutcome, RowOperation, Store, TableName, Take, Watch, WatchSettings, WatchSpec,
};
use changefeed_engine::{CancellationToken, Handled, WatchFunction, WatchTotals, Watcher};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::backend::{Backend, Session};

/// A change as a test compares it.
pub type Seen = (RowOperation, Value);

/// Settings with times that a test can wait for.
pub fn quick() -> WatchSettings {
    WatchSettings {
        retry_interval: Duration::from_millis(20),
        lease: Duration::from_millis(1500),
        renewal: Duration::from_millis(300),
        ..WatchSettings::default()
    }
}

/// A function on a table of the default schema.
pub fn spec(name: &str, table: &str) -> WatchSpec {
    WatchSpec::new(name.parse().unwrap(), TableName::unqualified(table))
}

/// A fresh database with a table `orders (id integer primary key, note text)` that a function
/// called `f` watches.
pub struct Scene {
    /// The database.
    pub backend: Arc<dyn Backend>,
    /// A store.
    pub store: Arc<dyn Store>,
    /// The application.
    pub app: Box<dyn Session>,
    /// The function.
    pub watch: Watch,
}

impl Scene {
    /// Sets everything up.
    pub async fn new(backend: Arc<dyn Backend>) -> Self {
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table orders (id integer primary key, note text)")
            .await;
        let watch = store.open_watch(&spec("f", "orders")).await.unwrap();
        Scene {
            backend,
            store,
            app,
            watch,
        }
    }

    /// Everything there is to do, a batch at a time, as instance `me`.
    pub async fn all(&self, batch: usize) -> Vec<Vec<Seen>> {
        let settings = WatchSettings { batch, ..quick() };
        take_all(&*self.store, &self.watch, &settings).await
    }

    /// The next batch for an instance.
    pub async fn take(&self, owner: &str, settings: &WatchSettings) -> Option<Batch> {
        take(&*self.store, &self.watch, owner, settings).await
    }

    /// Says what became of a batch; returns for how many rows that was taken.
    pub async fn settle(&self, batch: &Batch, outcome: BatchOutcome) -> u64 {
        self.store
            .settle(&self.watch, batch, &outcome, &quick())
            .await
            .unwrap()
            .rows
    }
}

/// The next batch for an instance.
pub async fn take(
    store: &dyn Store,
    watch: &Watch,
    owner: &str,
    settings: &WatchSettings,
) -> Option<Batch> {
    store.take(watch, Take { owner, settings }).await.unwrap()
}

/// Everything there is to do, a batch at a time, as instance `me`.
pub async fn take_all(
    store: &dyn Store,
    watch: &Watch,
    settings: &WatchSettings,
) -> Vec<Vec<Seen>> {
    let mut all = Vec::new();
    while let Some(batch) = take(store, watch, "me", settings).await {
        all.push(seen(&batch));
        let settled = store
            .settle(watch, &batch, &BatchOutcome::Done, settings)
            .await;
        assert_eq!(settled.unwrap().rows, batch.changes.len() as u64);
    }
    all
}

/// The changes of a batch.
pub fn seen(batch: &Batch) -> Vec<Seen> {
    batch
        .changes
        .iter()
        .map(|change| {
            let item = serde_json::from_str(change.item.get()).unwrap();
            (change.operation, item)
        })
        .collect()
}

/// The ids of a batch.
pub fn ids(batch: &Batch) -> Vec<i64> {
    seen(batch)
        .iter()
        .map(|(_, item)| item["id"].as_i64().unwrap())
        .collect()
}

/// A failure.
pub fn failed(error: &str) -> BatchOutcome {
    BatchOutcome::Failed {
        error: error.to_owned(),
    }
}

/// A copy of the table `orders` that is kept by what a function is handed.
#[derive(Debug, Default)]
pub struct Copy {
    /// Rows by id.
    pub rows: BTreeMap<i64, Option<String>>,
    /// Changes handed over.
    pub changes: u64,
    /// The highest version of each row, for the order of its changes.
    versions: BTreeMap<i64, i64>,
}

/// A function that keeps a copy, and fails when the dice say so.
#[derive(Debug, Clone, Default)]
pub struct Copying {
    /// What it has been handed.
    pub copy: Arc<Mutex<Copy>>,
    /// Calls of a thousand that fail.
    pub failures: u16,
    /// Whether half of the failures come after the batch was processed.
    pub late_failures: bool,
}

impl Copying {
    /// The rows of the copy.
    pub fn rows(&self) -> BTreeMap<i64, Option<String>> {
        self.copy
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .rows
            .clone()
    }

    fn apply(&self, batch: &Batch) {
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        for (change, (operation, item)) in batch.changes.iter().zip(seen(batch)) {
            let id = item["id"].as_i64().unwrap();
            let before = copy.versions.insert(id, change.version).unwrap_or(0);
            assert!(
                change.version >= before,
                "row {id}: version {} after {before}",
                change.version
            );
            copy.changes += 1;
            if operation == RowOperation::Delete {
                assert_eq!(item.as_object().unwrap().len(), 1, "only the key");
                copy.rows.remove(&id);
            } else {
                let note = item["note"].as_str().map(str::to_owned);
                copy.rows.insert(id, note);
            }
        }
    }
}

#[async_trait]
impl WatchFunction for Copying {
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
        let dice = fastrand::u16(..1000);
        if dice < self.failures && !(self.late_failures && dice % 2 == 0) {
            return Err("the dice said so".into());
        }
        tokio::task::yield_now().await;
        self.apply(batch);
        if dice < self.failures {
            return Err("the dice said so, too late".into());
        }
        Ok(Handled::all())
    }
}

/// An instance at work.
pub struct Instance {
    stop: CancellationToken,
    task: JoinHandle<changefeed_core::Result<WatchTotals>>,
}

impl Instance {
    /// Starts an instance of a function with a store of its own.
    pub async fn start(
        backend: &dyn Backend,
        watch: &Watch,
        owner: impl Into<String>,
        settings: WatchSettings,
        function: impl WatchFunction + 'static,
    ) -> Self {
        let watcher = Watcher::new(backend.store().await, watch.clone(), settings, owner);
        let stop = CancellationToken::new();
        let shutdown = stop.clone();
        let task = tokio::spawn(async move { watcher.run(&function, shutdown).await });
        Instance { stop, task }
    }

    /// Stops it and returns what it has done.
    pub async fn stop(self) -> WatchTotals {
        self.stop.cancel();
        self.task.await.unwrap().unwrap()
    }

    /// It dies without a word.
    pub fn kill(self) {
        self.task.abort();
    }
}

/// The rows of the table `orders`.
pub async fn orders(app: &dyn Session) -> BTreeMap<i64, Option<String>> {
    let rows = app.query("select id, note from orders").await.unwrap();
    rows.into_iter()
        .map(|row| (row[0].as_deref().unwrap().parse().unwrap(), row[1].clone()))
        .collect()
}
