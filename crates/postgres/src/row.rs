//! Columns of the answers to our statements: what is not as expected is an error, never a panic.

use std::fmt::Display;
use std::panic::Location;

use changefeed_core::{Error, Result};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::FromSql;

pub(crate) trait Cells {
    /// The value of a column, by its place or its name. What may be null is an `Option`.
    #[track_caller]
    fn take<'a, T: FromSql<'a>>(&'a self, column: impl RowIndex + Display) -> Result<T>;
}

impl Cells for Row {
    #[track_caller]
    fn take<'a, T: FromSql<'a>>(&'a self, column: impl RowIndex + Display) -> Result<T> {
        let asked = Location::caller();
        self.try_get(&column)
            .map_err(|e| Error::unreadable(column, asked).caused_by(e))
    }
}
