//! Definitions, many at once.

use async_trait::async_trait;
use changefeed_core::{DefinitionStore, Result, Step, TableName, Watch, crash_point, words};
use rusqlite::Connection;

use crate::source::Table;
use crate::{SqliteStore, feeds, subscriptions, triggers, watches};

#[async_trait]
impl DefinitionStore for SqliteStore {
    async fn find_table(&self, table: &TableName) -> Result<TableName> {
        let table = table.clone();
        self.reading(move |tx| Ok(TableName::unqualified(Table::find(tx, &table)?.name)))
            .await
    }

    async fn apply(&self, steps: &[Step]) -> Result<()> {
        let steps = steps.to_vec();
        let watches = self
            .writing(move |tx| {
                let mut watches = Vec::new();
                for step in steps {
                    watches.extend(take(tx, step)?);
                    crash_point("apply.step");
                }
                Ok(watches)
            })
            .await?;
        crash_point("apply.after_commit");
        self.announce();
        for watch in watches {
            self.load(&watch).await?;
        }
        Ok(())
    }
}

/// Takes one step. Returns the watch that it may have to load rows for.
fn take(tx: &Connection, step: Step) -> Result<Option<Watch>> {
    match step {
        Step::CreateFeed(new) => {
            new.validate()?;
            feeds::create(tx, new)?;
        }
        Step::ChangeFeed(feed) => feeds::change(tx, &feed)?,
        Step::DropFeed(feed) => feeds::drop(tx, &feed)?,
        Step::CreateTrigger(definition) => {
            definition.validate()?;
            triggers::create(tx, definition, false)?;
        }
        Step::ChangeTrigger(definition) => {
            definition.validate()?;
            triggers::create(tx, definition, true)?;
        }
        Step::PauseTrigger(name, reason) => {
            let trigger = triggers::list(tx)?
                .into_iter()
                .find(|t| t.definition.name == name)
                .ok_or_else(|| words::trigger_gone(&name))?;
            triggers::pause(tx, &trigger, reason.as_deref())?;
        }
        Step::DropTrigger(trigger) => triggers::drop(tx, &trigger)?,
        Step::PutWatch(spec) => return watches::open(tx, &spec).map(Some),
        Step::DropWatch(watch) => watches::drop(tx, &watch)?,
        Step::PutSubscription(definition, starts) => {
            subscriptions::define(tx, &definition, &starts)?;
        }
        Step::PauseSubscription(name, reason) => {
            subscriptions::pause(tx, &name, reason.as_deref())?;
        }
        Step::DropSubscription(name) => subscriptions::drop(tx, &name)?,
    }
    Ok(None)
}
