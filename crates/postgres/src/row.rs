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

    /// A number that is never null and never negative.
    #[track_caller]
    fn count<'a, N: FromSql<'a>, T: TryFrom<N>>(
        &'a self,
        column: impl RowIndex + Display + Copy,
    ) -> Result<T>;
}

impl Cells for Row {
    #[track_caller]
    fn take<'a, T: FromSql<'a>>(&'a self, column: impl RowIndex + Display) -> Result<T> {
        let asked = Location::caller();
        self.try_get(&column)
            .map_err(|e| Error::unreadable(column, asked).caused_by(e))
    }

    #[track_caller]
    fn count<'a, N: FromSql<'a>, T: TryFrom<N>>(
        &'a self,
        column: impl RowIndex + Display + Copy,
    ) -> Result<T> {
        let asked = Location::caller();
        T::try_from(self.take(column)?).map_err(|_| Error::unreadable(column, asked))
    }
}
