//! Definitions, many at once.

use std::time::{Duration, Instant};

use changefeed_core::{Error, FeedId, Kind, Result, Step, TableName, crash_point, words};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::patience::Patience;
use crate::session::Session;
use crate::source::Table;
use crate::watches::Opened;
use crate::{feeds, subscriptions, table_locks, triggers, watches};

impl Session {
    pub(crate) async fn find_table(&self, table: &TableName) -> Result<TableName> {
        let client = &**self;
        Ok(Table::find(&**client, table).await?.name)
    }

    pub(crate) async fn apply(&mut self, steps: &[Step]) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut first = None;
        let after = loop {
            let patience = until.saturating_duration_since(Instant::now());
            match self.take_all(steps, patience, &mut first).await {
                // Lets the transaction in the way and those behind us go on.
                Err(error) if error.kind() == Kind::Busy && patience > PAUSE => {
                    tracing::debug!(%error, "trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
                Ok(after) => break after,
            }
        };
        crash_point("apply.after_commit");
        if steps
            .iter()
            .any(|step| matches!(step, Step::DropTrigger(_)))
        {
            self.archive_dropped().await;
        }
        for feed in after.feeds {
            self.known.row_types.forget(feed);
        }
        for leases in after.dropped {
            self.known.backlogs.forget(&leases);
        }
        for opened in &after.opened {
            self.opened(opened).await?;
        }
        Ok(())
    }
}

/// For how long it is tried.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(30);

impl Session {
    /// Takes all steps, or none.
    async fn take_all(
        &mut self,
        steps: &[Step],
        patience: Duration,
        first: &mut Option<TableName>,
    ) -> Result<After> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        table_locks::lock(&*transaction, steps, patience, first).await?;
        // What is waited for from here on is held by instances of ours, for moments.
        Patience::Moment.set(&*transaction).await?;
        let mut after = After::default();
        for step in steps {
            let taken = take(&*transaction, step, &mut after).await;
            taken.map_err(|e| unsaid(e, step))?;
            crash_point("apply.step");
        }
        transaction.commit().await.map_err(db)?;
        Ok(after)
    }
}

/// Adds to an error of the server which step waited for a lock.
fn unsaid(error: Error, step: &Step) -> Error {
    if error.kind() != Kind::Busy || error.advice().is_some() {
        return error;
    }
    Error::new(
        Kind::Busy,
        format!("other sessions have been using {step} for too long"),
    )
    .advise("try again when there are no long transactions on it")
    .caused_by(error)
}

/// What remains to be done after the commit.
#[derive(Default)]
struct After {
    feeds: Vec<FeedId>,
    dropped: Vec<String>,
    opened: Vec<Opened>,
}

async fn take(client: &impl GenericClient, step: &Step, after: &mut After) -> Result<()> {
    match step {
        Step::CreateFeed(new) => after.feeds.push(feeds::create(client, new).await?.id),
        Step::ChangeFeed(feed) => feeds::change(client, feed).await?,
        Step::DropFeed(feed) => {
            feeds::drop(client, feed).await?;
            after.feeds.push(feed.id);
        }
        Step::CreateTrigger(definition) => {
            let (_, feed) = triggers::create(client, definition, false, Patience::Moment).await?;
            after.feeds.extend(feed);
        }
        Step::ChangeTrigger(definition) => {
            let (_, feed) = triggers::create(client, definition, true, Patience::Moment).await?;
            after.feeds.extend(feed);
        }
        Step::PauseTrigger(name, reason) => {
            if !triggers::pause(client, name, None, reason.as_deref()).await? {
                return Err(words::trigger_gone(name));
            }
        }
        Step::DropTrigger(trigger) => triggers::drop(client, trigger, Patience::Moment).await?,
        Step::PutWatch(spec) => after.opened.push(watches::open(client, spec).await?),
        Step::DropWatch(watch) => {
            watches::drop(client, watch).await?;
            after.dropped.push(watch.leases_table.clone());
        }
        Step::PutSubscription(definition, starts) => {
            subscriptions::define(client, definition, starts).await?;
        }
        Step::PauseSubscription(name, reason) => {
            subscriptions::pause(client, name, reason.as_deref()).await?;
        }
        Step::DropSubscription(name) => subscriptions::drop(client, name).await?,
    }
    Ok(())
}
