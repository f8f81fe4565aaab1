//! Watching a table from Rust.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::sinks::webhook::without_secrets;
use crate::supervisor::unique_name;
use crate::{CancellationToken, WatchFunction, WatchTotals, Watcher};
use async_trait::async_trait;
use changefeed_core::{
    Batch, Error, Result, RowChange, Store, TableName, Watch, WatchFrom, WatchName, WatchSettings,
    WatchSpec, WatchStatus,
};
use serde::de::DeserializeOwned;

use super::Changefeed;

/// A function that is about to watch a table: see [`Changefeed::watch`].
#[derive(Clone)]
#[must_use = "nothing is watched until `run` is called"]
pub struct WatchBuilder {
    store: Arc<dyn Store>,
    table: String,
    name: Option<String>,
    owner: Option<String>,
    from: WatchFrom,
    columns: bool,
    max_changes_per_worker: Option<u32>,
    settings: WatchSettings,
}

impl std::fmt::Debug for WatchBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchBuilder")
            .field("table", &self.table)
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Changefeed {
    /// Hands the changed rows of a table to a function, net and in leased batches.
    pub fn watch(&self, table: impl Into<String>) -> WatchBuilder {
        WatchBuilder {
            store: self.store().clone(),
            table: table.into(),
            name: None,
            owner: None,
            from: WatchFrom::Now,
            columns: false,
            max_changes_per_worker: None,
            settings: WatchSettings::default(),
        }
    }
}

impl Changefeed {
    /// The state of every watch, as people may see it.
    pub async fn watch_statuses(&self) -> Result<Vec<WatchStatus>> {
        let mut statuses = Vec::new();
        for watch in self.store().watches().await? {
            statuses.push(self.watch_status(&watch, 0).await?);
        }
        Ok(statuses)
    }

    /// The state of a watch, with its oldest parked changes, as people may see it: its address is
    /// without what looks like a secret.
    pub async fn watch_status(&self, watch: &Watch, parked: usize) -> Result<WatchStatus> {
        let mut status = self.store().watch_status(watch, parked).await?;
        if let Some(definition) = &mut status.watch.definition {
            definition.sink = without_secrets(&definition.sink);
        }
        Ok(status)
    }
}

impl WatchBuilder {
    /// The function's name: all instances that share its work have the same, and one that is
    /// started again goes on where it was.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What tells this instance from the others of the function; made up unless it is given.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// A new function begins with all rows that are there already.
    pub fn from_beginning(mut self) -> Self {
        self.from = WatchFrom::Beginning;
        self
    }

    /// Each update tells which columns were changed, in [`RowChange::columns`]. Writers of the table
    /// pay for that.
    pub fn with_columns(mut self) -> Self {
        self.columns = true;
        self
    }

    /// Rows in a batch at most; 100 unless given.
    pub fn batch(mut self, rows: usize) -> Self {
        self.settings.batch = rows;
        self
    }

    /// How long a failed batch waits for its next attempt; a second unless given.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.settings.interval = interval;
        self
    }

    /// How long rows stay leased to an instance that does not renew its lease, and how often it renews that;
    /// 60 s and 15 s unless given.
    pub fn lease(mut self, lease: Duration, renewal: Duration) -> Self {
        self.settings.lease = lease;
        self.settings.renewal = renewal;
        self
    }

    /// How often a change is tried before it is parked; 5 times unless given.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.settings.attempts = attempts;
        self
    }

    /// How many unprocessed changes one worker is good for, where workers are suggested; a thousand
    /// unless somebody has said otherwise.
    pub fn max_changes_per_worker(mut self, changes: std::num::NonZeroU32) -> Self {
        self.max_changes_per_worker = Some(changes.get());
        self
    }

    /// Runs an async closure on typed rows until told to stop. An error of the closure is a failed
    /// batch. The closure's future is dropped when the lease of its rows is lost.
    pub async fn run<T, E, F, Fut>(
        self,
        function: F,
        shutdown: CancellationToken,
    ) -> Result<WatchTotals>
    where
        T: DeserializeOwned + Send,
        E: Display,
        F: Fn(Vec<RowChange<T>>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<(), E>> + Send,
    {
        let function = Typed {
            function,
            rows: std::marker::PhantomData,
        };
        self.run_function(&function, shutdown).await
    }

    /// Runs anything that takes batches until told to stop.
    pub async fn run_function(
        self,
        function: &dyn WatchFunction,
        shutdown: CancellationToken,
    ) -> Result<WatchTotals> {
        self.settings.validate()?;
        let name: WatchName = match &self.name {
            Some(name) => name.parse()?,
            None => {
                return Err(Error::invalid("the function has no name")
                    .advise("give it one with `name`: it is known by it when it starts again"));
            }
        };
        let table = TableName::parse(&self.table, self.store.dialect().fold)?;
        let spec = WatchSpec {
            from: self.from,
            columns: self.columns,
            max_changes_per_worker: self.max_changes_per_worker,
            ..WatchSpec::new(name, table)
        };
        let watch = self.store.open_watch(&spec).await?;
        let owner = self.owner.unwrap_or_else(unique_name);
        Watcher::new(self.store, watch, self.settings, owner)
            .run(function, shutdown)
            .await
    }
}

struct Typed<T, F> {
    function: F,
    rows: std::marker::PhantomData<fn() -> T>,
}

#[async_trait]
impl<T, E, F, Fut> WatchFunction for Typed<T, F>
where
    T: DeserializeOwned + Send,
    E: Display,
    F: Fn(Vec<RowChange<T>>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), E>> + Send,
{
    async fn call(&self, batch: &Batch) -> Result<(), String> {
        let mut changes = Vec::with_capacity(batch.changes.len());
        for change in &batch.changes {
            let item = serde_json::from_str(change.item.get())
                .map_err(|e| format!("a row is not what the function expects: {e}"))?;
            changes.push(RowChange {
                operation: change.operation,
                item,
                version: change.version,
                bits: change.bits,
                columns: change.columns.clone(),
            });
        }
        (self.function)(changes).await.map_err(|e| e.to_string())
    }
}
