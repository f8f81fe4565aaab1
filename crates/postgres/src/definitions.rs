//! Definitions, many at once.

use async_trait::async_trait;
use changefeed_core::{DefinitionStore, Error, FeedId, Result, Step, TableName, crash_point};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::source::Table;
use crate::tracking::SAFE_PATH;
use crate::watches::Opened;
use crate::{PostgresStore, feeds, triggers, watches};

#[async_trait]
impl DefinitionStore for PostgresStore {
    async fn find_table(&self, table: &TableName) -> Result<TableName> {
        let client = self.client().await?;
        Ok(Table::find(&**client, table).await?.name)
    }

    async fn apply(&self, steps: &[Step]) -> Result<()> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await.map_err(db)?;
        // Whoever waits for a table or a shard makes others wait behind.
        let patience = "set local lock_timeout = '5s'";
        transaction.batch_execute(patience).await.map_err(db)?;
        let mut after = After::default();
        for step in steps {
            take(&*transaction, step, &mut after).await?;
            crash_point("apply.step");
        }
        transaction.commit().await.map_err(db)?;
        crash_point("apply.after_commit");
        for feed in after.feeds {
            self.inner.joins.forget(feed);
        }
        for leases in after.dropped {
            self.inner.backlogs.forget(&leases);
        }
        for opened in &after.opened {
            self.opened(opened).await?;
        }
        Ok(())
    }
}

/// What has to be done when everything is committed.
#[derive(Default)]
struct After {
    feeds: Vec<FeedId>,
    dropped: Vec<String>,
    opened: Vec<Opened>,
}

async fn take(client: &impl GenericClient, step: &Step, after: &mut After) -> Result<()> {
    if step.watch().is_some() {
        // Every table has its schema in its name by now, so the path is not needed any more.
        client.batch_execute(SAFE_PATH).await.map_err(db)?;
    }
    match step {
        Step::CreateFeed(new) => after.feeds.push(feeds::create(client, new).await?.id),
        Step::ChangeFeed(feed) => feeds::change(client, feed).await?,
        Step::DropFeed(feed) => {
            feeds::drop(client, feed).await?;
            after.feeds.push(feed.id);
        }
        Step::CreateTrigger(definition) => {
            let (_, feed) = triggers::create(client, definition, false).await?;
            after.feeds.extend(feed);
        }
        Step::ChangeTrigger(definition) => {
            let (_, feed) = triggers::create(client, definition, true).await?;
            after.feeds.extend(feed);
        }
        Step::PauseTrigger(name, reason) => {
            if !triggers::pause(client, name, None, reason.as_deref()).await? {
                return Err(Error::not_found(format!(
                    "trigger '{name}' is not there any more"
                )));
            }
        }
        Step::DropTrigger(trigger) => triggers::drop(client, trigger).await?,
        Step::PutWatch(spec) => after
            .opened
            .push(watches::open(client, spec, &spec.table).await?),
        Step::DropWatch(watch) => {
            watches::drop(client, watch).await?;
            after.dropped.push(watch.leases_table.clone());
        }
    }
    Ok(())
}
