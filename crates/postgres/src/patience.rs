//! How long we wait for others. Whoever comes after us waits behind us meanwhile.

use std::fmt::Display;

use changefeed_core::{Error, Kind, Result, words};
use tokio_postgres::GenericClient;

use crate::error::db;

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
