//! Definitions, many at once.

use std::collections::VecDeque;

use changefeed_core::{FeedId, Result, Step, TableName, Watch, crash_point, words};

use crate::connection::Connection;
use crate::session::Session;
use crate::source::Table;
use crate::watch_triggers::Triggers;
use crate::watches::{self, Opening};
use crate::{feeds, subscriptions, table_trigger, triggers};

impl Session {
    pub(crate) async fn find_table(&mut self, table: &TableName) -> Result<TableName> {
        let connection = &mut *self.connection;
        Ok(Table::find(connection, table).await?.name)
    }

    pub(crate) async fn apply(&mut self, steps: &[Step]) -> Result<()> {
        let connection = &mut *self.connection;
        let (mut openings, mut dropped) = (VecDeque::new(), Vec::new());
        for step in steps {
            match step {
                Step::DropWatch(watch) => dropped.push(&watch.name),
                Step::PutWatch(spec) => {
                    let before = dropped.contains(&&spec.name);
                    openings.push_back(Opening::look(connection, spec, before).await?);
                }
                _ => {}
            }
        }
        connection.begin().await?;
        let taken = async {
            let mut touched = Touched::default();
            for step in steps {
                touched.take(connection, step, &mut openings).await?;
                crash_point("apply.step");
            }
            let triggers = std::mem::take(&mut touched.triggers);
            triggers.settle(connection).await?;
            connection.commit().await?;
            Ok(touched)
        };
        let touched = match taken.await {
            Ok(touched) => touched,
            Err(error) => {
                table_trigger::give_up(connection).await;
                return Err(error);
            }
        };
        crash_point("apply.after_commit");
        if steps
            .iter()
            .any(|step| matches!(step, Step::DropTrigger(_)))
        {
            self.archive_dropped().await;
        }
        for feed in touched.feeds {
            self.known.joins.forget(feed);
        }
        for watch in &touched.dropped {
            self.known.backlogs.forget(&watch.leases_table);
        }
        for watch in &touched.opened {
            self.opened(watch).await?;
        }
        Ok(())
    }
}

/// What others have to hear of when everything is done.
#[derive(Default)]
struct Touched {
    /// Feeds whose pages may be joined in another way from now on.
    feeds: Vec<FeedId>,
    opened: Vec<Watch>,
    dropped: Vec<Watch>,
    /// Triggers of watches, which wait for the other steps.
    triggers: Triggers,
}

impl Touched {
    /// Takes one step. Watches that are put were looked at before, in this order.
    async fn take(
        &mut self,
        connection: &mut Connection,
        step: &Step,
        openings: &mut VecDeque<Opening>,
    ) -> Result<()> {
        match step {
            Step::CreateFeed(new) => self.feeds.push(feeds::create(connection, new).await?.id),
            Step::ChangeFeed(feed) => feeds::change(connection, feed).await?,
            Step::DropFeed(feed) => {
                feeds::drop(connection, feed).await?;
                self.feeds.push(feed.id);
            }
            Step::CreateTrigger(definition) => {
                let (_, feed) = triggers::create(connection, definition, false).await?;
                self.feeds.extend(feed);
            }
            Step::ChangeTrigger(definition) => {
                let (_, feed) = triggers::create(connection, definition, true).await?;
                self.feeds.extend(feed);
            }
            Step::PauseTrigger(name, reason) => {
                if !triggers::pause(connection, name, None, reason.as_deref()).await? {
                    return Err(words::trigger_gone(name));
                }
            }
            Step::DropTrigger(trigger) => triggers::drop(connection, trigger).await?,
            Step::PutWatch(spec) => {
                if let Some(opening) = openings.pop_front() {
                    let watch = opening.make(connection, spec, &mut self.triggers).await?;
                    self.opened.push(watch);
                }
            }
            Step::DropWatch(watch) => {
                watches::remove(connection, watch, &mut self.triggers).await?;
                self.dropped.push(watch.clone());
            }
            Step::PutSubscription(definition, starts) => {
                subscriptions::define(connection, definition, starts).await?;
            }
            Step::PauseSubscription(name, reason) => {
                subscriptions::pause(connection, name, reason.as_deref()).await?;
            }
            Step::DropSubscription(name) => subscriptions::drop(connection, name).await?,
        }
        Ok(())
    }
}
