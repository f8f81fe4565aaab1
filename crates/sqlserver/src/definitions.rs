//! Definitions, many at once.

use async_trait::async_trait;
use changefeed_core::{
    DefinitionStore, Error, FeedId, Result, Step, TableName, WatchStore, crash_point,
};

use crate::connection::Connection;
use crate::platform::Platform;
use crate::source::Table;
use crate::{SqlServerStore, event_install, feeds, triggers};

#[async_trait]
impl DefinitionStore for SqlServerStore {
    async fn find_table(&self, table: &TableName) -> Result<TableName> {
        let mut connection = self.connection().await?;
        Ok(Table::find(&mut connection, table).await?.name)
    }

    // Differs: watches have their own transactions here, one each, before that of all other steps. What
    // is cut off in between is completed by applying it again.
    async fn apply(&self, steps: &[Step]) -> Result<()> {
        for step in steps {
            match step {
                Step::PutWatch(spec) => drop(self.open_watch(spec).await?),
                Step::DropWatch(watch) => self.drop_watch(watch).await?,
                _ => {}
            }
        }
        let mut connection = self.connection().await?;
        connection.begin().await?;
        let taken = async {
            let mut touched = Vec::new();
            for step in steps.iter().filter(|step| step.watch().is_none()) {
                touched.extend(take(&mut connection, self.inner.platform, step).await?);
                crash_point("apply.step");
            }
            connection.commit().await?;
            Ok(touched)
        };
        match taken.await {
            Ok(touched) => {
                for feed in touched {
                    self.inner.joins.forget(feed);
                }
                Ok(())
            }
            Err(error) => {
                event_install::give_up(&mut connection).await;
                Err(error)
            }
        }
    }
}

/// Takes one step. Returns the feed whose pages may be joined in another way from now on.
async fn take(
    connection: &mut Connection,
    platform: Platform,
    step: &Step,
) -> Result<Option<FeedId>> {
    match step {
        Step::CreateFeed(new) => Ok(Some(feeds::create(connection, new).await?.id)),
        Step::ChangeFeed(feed) => {
            feeds::change(connection, feed).await?;
            Ok(None)
        }
        Step::DropFeed(feed) => {
            feeds::drop(connection, feed).await?;
            Ok(Some(feed.id))
        }
        Step::CreateTrigger(definition) => {
            let (_, feed) = triggers::create(connection, platform, definition, false).await?;
            Ok(feed)
        }
        Step::ChangeTrigger(definition) => {
            let (_, feed) = triggers::create(connection, platform, definition, true).await?;
            Ok(feed)
        }
        Step::PauseTrigger(name, reason) => {
            match triggers::pause(connection, name, None, reason.as_deref()).await? {
                true => Ok(None),
                false => Err(Error::not_found(format!(
                    "trigger '{name}' is not there any more"
                ))),
            }
        }
        Step::DropTrigger(trigger) => {
            triggers::drop(connection, trigger).await?;
            Ok(None)
        }
        Step::PutWatch(_) | Step::DropWatch(_) => Ok(None),
    }
}
