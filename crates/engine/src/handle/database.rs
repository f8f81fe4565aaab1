//! A database, as a library user holds it.

use std::fmt;
use std::sync::Arc;

use changefeed_core::{
    Condition, Consumer, Error, Incarnation, Incident, LeaseHolder, Migration, NewFeed, Result,
    SchemaState, Store, SweepGroup, SweepReport, TableName,
};

use super::FeedHandle;
use crate::Sweeper;

/// A database with change feeds. Cheap to clone.
#[derive(Clone)]
pub struct Changefeed {
    store: Arc<dyn Store>,
}

impl fmt::Debug for Changefeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changefeed").finish_non_exhaustive()
    }
}

impl Changefeed {
    /// A handle on a store that was opened by other means.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Changefeed { store }
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// What is installed in the database.
    pub async fn schema(&self) -> Result<SchemaState> {
        self.store.schema().await
    }

    /// Installs our tables, or brings them up to date.
    pub async fn migrate(&self) -> Result<Migration> {
        self.store.migrate().await
    }

    /// Removes everything of ours.
    pub async fn uninstall(&self) -> Result<()> {
        self.store.uninstall().await
    }

    /// The life of this database.
    pub async fn incarnation(&self) -> Result<Incarnation> {
        self.store.incarnation().await
    }

    /// Begins another life, after the database was restored from a backup.
    pub async fn recover(&self) -> Result<Incarnation> {
        self.store.recover().await
    }

    /// Creates a feed.
    pub async fn create_feed(&self, new: &NewFeed) -> Result<FeedHandle> {
        let feed = self.store.create_feed(new).await?;
        Ok(FeedHandle {
            store: self.store.clone(),
            feed,
            incarnation: None,
        })
    }

    /// All feeds.
    pub async fn feeds(&self) -> Result<Vec<FeedHandle>> {
        let feeds = self.store.feeds().await?;
        Ok(feeds
            .into_iter()
            .map(|feed| FeedHandle {
                store: self.store.clone(),
                feed,
                incarnation: None,
            })
            .collect())
    }

    /// The feed with this name.
    pub async fn feed(&self, name: &str) -> Result<FeedHandle> {
        let feeds = self.feeds().await?;
        let known: Vec<String> = feeds.iter().map(|f| f.name().to_owned()).collect();
        feeds.into_iter().find(|f| f.name() == name).ok_or_else(|| {
            Error::not_found(format!("there is no feed '{name}'")).advise(if known.is_empty() {
                "`changefeed feed create` makes one".to_owned()
            } else {
                format!("the feeds are {}", known.join(", "))
            })
        })
    }

    /// A table name as a person writes it, folded as this database folds it.
    pub fn table(&self, text: &str) -> Result<TableName> {
        TableName::parse(text, self.store.dialect().fold)
    }

    /// A column name as a person writes it, folded as this database folds it.
    pub fn column(&self, text: &str) -> Result<String> {
        TableName::parse_column(text, self.store.dialect().fold)
    }

    /// A condition in our own small language, as this database wants it written.
    pub fn condition(&self, text: &str) -> Result<String> {
        let dialect = self.store.dialect();
        Ok(Condition::parse(text, dialect.fold)?.sql(dialect))
    }

    /// Whether changes wait for a sweep, or get their number at insert.
    pub fn needs_sweeping(&self) -> bool {
        self.store.needs_sweeping()
    }

    /// Numbers what is committed, once.
    pub async fn sweep(&self, group: SweepGroup) -> Result<SweepReport> {
        self.store.sweep(group).await
    }

    /// A sweeper to run in the background; `owner` must be unique to this instance.
    pub fn sweeper(&self, group: SweepGroup, owner: impl Into<String>) -> Sweeper {
        Sweeper::new(self.store.clone(), group, owner)
    }

    /// The sweep groups that have shards.
    pub async fn sweep_groups(&self) -> Result<Vec<SweepGroup>> {
        self.store.sweep_groups().await
    }

    /// Named consumers and how far behind they are.
    pub async fn consumers(&self) -> Result<Vec<Consumer>> {
        self.store.consumers().await
    }

    /// Shards whose ULID writers had to go on without one of theirs.
    pub async fn incidents(&self) -> Result<Vec<Incident>> {
        self.store.incidents().await
    }

    /// Who sweeps what.
    pub async fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.store.lease_holders().await
    }
}
