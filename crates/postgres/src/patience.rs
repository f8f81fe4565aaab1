//! How long we wait for others. Whoever comes after us waits behind us meanwhile.

use std::fmt::Display;

use changefeed_core::{Error, Kind, Result, words};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::source::Table;

/// How long to wait for writers to finish before something is done to their table. Nobody but a
/// person may ask for more than a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// Somebody asked for it.
    Person,
    /// We noticed that it would be good, or hold something already that others want.
    Moment,
}

impl Patience {
    /// For the rest of the transaction.
    pub(crate) async fn set(self, client: &impl GenericClient) -> Result<()> {
        let sql = match self {
            Patience::Person => "set local lock_timeout = '5s'",
            Patience::Moment => "set local lock_timeout = '200ms'",
        };
        client.batch_execute(sql).await.map_err(db)
    }
}

/// Adds the table whose lock was not granted to an error.
pub(crate) fn in_use(error: Error, table: &dyn Display) -> Error {
    if error.kind() != Kind::Busy {
        return error;
    }
    words::table_in_use(table).caused_by(error)
}

/// What keeps a trigger from being created: a right, or others who use the table.
pub(crate) fn no_trigger(error: tokio_postgres::Error, table: &Table) -> Error {
    in_use(trigger_right(db(error), table), &table.name)
}

/// Adds what grants the right to create a trigger to an error.
pub(crate) fn trigger_right(error: Error, table: &Table) -> Error {
    if error.kind() != Kind::Permission {
        return error;
    }
    words::trigger_right_missing(&table.name)
        .advise(format!("grant trigger on {} to this user", table.sql))
        .caused_by(error)
}
