//! Watching a table from Rust.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::sinks::webhook::without_secrets;
use crate::supervisor::unique_name;
use crate::{CancellationToken, Handled, WatchFunction, WatchTotals, Watcher};
use async_trait::async_trait;
use changefeed_core::{
    Batch, BatchFormat, Error, Result, RowChange, RowFilter, RowOperation, Store, TableName, Watch,
    WatchFrom, WatchName, WatchSettings, WatchSpec, WatchStatus,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Changefeed;

/// A temporary watch that nobody has worked for this long was left behind: one that is at work says so every ten
/// seconds.
const LEFT_AFTER_MS: i64 = 60_000;

/// A function that is about to watch a table: see [`Changefeed::watch`].
#[derive(Clone)]
#[must_use = "nothing is watched until `run` is called"]
pub struct WatchBuilder {
    store: Arc<dyn Store>,
    table: String,
    name: Option<String>,
    owner: Option<String>,
    from: WatchFrom,
    filter: RowFilter,
    format: BatchFormat,
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
            filter: RowFilter::default(),
            format: BatchFormat::default(),
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

    /// Removes temporary watches whose processes were killed: nobody has worked for them for a minute.
    pub async fn remove_left_watches(&self) -> Result<()> {
        for watch in self.store().watches().await? {
            if !watch.name.is_temporary() {
                continue;
            }
            let idle_ms = self.store().watch_status(&watch, 0).await?.idle_ms;
            if idle_ms.is_none_or(|ms| ms > LEFT_AFTER_MS) {
                self.store().drop_watch(&watch).await?;
                tracing::info!(watch = %watch.name, "this watch was left behind, and is removed");
            }
        }
        Ok(())
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
        self.format.columns = true;
        self
    }

    /// Each update and delete tells what the row was before, in [`RowChange::before`]. Writers of the table pay for
    /// that.
    pub fn with_before(mut self) -> Self {
        self.format.before = true;
        self
    }

    /// Only these operations are handed over.
    pub fn on(mut self, operations: impl IntoIterator<Item = RowOperation>) -> Self {
        self.filter.on = operations.into_iter().collect();
        self
    }

    /// Only rows of which this condition is true are handed over, as in `status = 'paid' and total > 100`. To the
    /// function, the table has just these: a row that is not like that any more is a delete. Writers of the table
    /// pay for noting what it was before.
    pub fn when(mut self, condition: impl Into<String>) -> Self {
        self.filter.when = Some(condition.into());
        self
    }

    /// Rows are handed over with these columns and their key only, and updates that changed none of them not at all.
    pub fn columns<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.filter.columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Rows in a batch at most; 100 unless given.
    pub fn batch(mut self, rows: usize) -> Self {
        self.settings.batch = rows;
        self
    }

    /// How long an instance that has found nothing more to do waits before it looks again, however soon there is
    /// something; it is woken by changes unless this is given.
    pub fn polling_interval(mut self, interval: Duration) -> Self {
        self.settings.polling_interval = interval;
        self
    }

    /// How long a failed batch waits for its next attempt; a second unless given.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.settings.retry_interval = interval;
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
    /// batch; where only some rows have failed it returns [`Handled::except`] them. The closure's future is dropped
    /// when the lease of its rows is lost.
    pub async fn run<T, E, F, Fut, R>(
        self,
        function: F,
        shutdown: CancellationToken,
    ) -> Result<WatchTotals>
    where
        T: DeserializeOwned + Send,
        E: Display,
        F: Fn(Vec<RowChange<T>>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
        R: Into<Handled>,
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
            max_changes_per_worker: self.max_changes_per_worker,
            ..WatchSpec::new(name, table).wanting(&self.filter, self.format)
        };
        let watch = self.store.open_watch(&spec).await?;
        let owner = self.owner.unwrap_or_else(unique_name);
        Watcher::new(self.store, watch, self.settings, owner)
            .filter(&self.filter, self.format)?
            .run(function, shutdown)
            .await
    }
}

struct Typed<T, F> {
    function: F,
    rows: std::marker::PhantomData<fn() -> T>,
}

#[async_trait]
impl<T, E, F, Fut, R> WatchFunction for Typed<T, F>
where
    T: DeserializeOwned + Send,
    E: Display,
    F: Fn(Vec<RowChange<T>>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Handled>,
{
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
        let mut changes = Vec::with_capacity(batch.changes.len());
        for change in &batch.changes {
            let typed = |row: &RawValue| {
                serde_json::from_str(row.get())
                    .map_err(|e| format!("a row is not what the function expects: {e}"))
            };
            let item = typed(&change.item)?;
            let before = change.before.as_deref().map(typed).transpose()?;
            changes.push(RowChange {
                operation: change.operation,
                item,
                version: change.version,
                bits: change.bits,
                columns: change.columns.clone(),
                before,
                images: None,
            });
        }
        let handled = (self.function)(changes).await;
        handled.map(Into::into).map_err(|e| e.to_string())
    }
}
