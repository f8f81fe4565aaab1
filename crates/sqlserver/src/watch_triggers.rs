//! Triggers of watches that are to come or go.
//!
//! That is done when everything else is: from then until the commit nobody can touch the tables that they
//! are on, not even whoever reads without locks. What is changed before is not missed: a watch that begins
//! now begins with the commit, and existing rows are loaded after it.

use std::collections::BTreeMap;

use changefeed_core::Result;

use crate::connection::Connection;
use crate::tracking::{Tracked, log_name, remove_trigger};

/// What is to become of the triggers of some tables, in an order that is the same for everybody: the table
/// as its trigger is to note it, or nothing where nobody watches it any more.
#[derive(Default)]
pub(crate) struct Triggers(BTreeMap<i32, Option<Tracked>>);

impl Triggers {
    /// The trigger of a table comes, in place of the one that is there.
    pub(crate) fn put(&mut self, tracked: &Tracked) {
        self.0.insert(tracked.id(), Some(tracked.clone()));
    }

    /// The trigger of a table goes, and with it what it has noted.
    pub(crate) fn remove(&mut self, table_id: i32) {
        self.0.insert(table_id, None);
    }

    /// Whether the trigger of a table is about to come.
    pub(crate) fn comes(&self, table_id: i32) -> bool {
        self.0.get(&table_id).is_some_and(Option::is_some)
    }

    /// Does all that, as the last thing before the commit.
    pub(crate) async fn settle(self, connection: &mut Connection) -> Result<()> {
        for (table_id, tracked) in self.0 {
            match tracked {
                Some(tracked) => tracked.put_trigger(connection).await?,
                None => remove_log(connection, table_id).await?,
            }
        }
        Ok(())
    }
}

/// Removes what the trigger of a table has noted. First the trigger: a writer that waits for what it notes
/// would keep us from its table for ever.
pub(crate) async fn remove_log(connection: &mut Connection, table_id: i32) -> Result<()> {
    remove_trigger(connection, table_id).await?;
    let log = log_name(table_id);
    let sql = format!("drop table if exists changefeed.{log}");
    connection.batch(&sql).await
}
