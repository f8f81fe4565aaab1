//! Which version of our tables a database has, and what that means for this program.

use serde::Serialize;

use crate::{Error, Kind, Result};

/// The version of the schema that this program was written for; the same number on every
/// database.
pub const SCHEMA_VERSION: i32 = 6;

/// What is installed in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaState {
    /// Nothing of ours.
    Missing,
    /// This version.
    At(i32),
}

/// What `migrate` did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Migration {
    /// The version before; 0 when there was nothing.
    pub from: i32,
    /// The version now.
    pub to: i32,
}

/// Refuses to work with any schema but the one this program knows, and says what to run.
pub fn require_current(state: SchemaState) -> Result<()> {
    match state {
        SchemaState::At(SCHEMA_VERSION) => Ok(()),
        SchemaState::Missing => Err(Error::new(
            Kind::SchemaMissing,
            "changefeed is not installed in this database",
        )
        .advise("run `changefeed migrate`")),
        SchemaState::At(found) if found < SCHEMA_VERSION => Err(Error::new(
            Kind::SchemaTooOld,
            format!(
                "the database has changefeed schema {found}, this program needs {SCHEMA_VERSION}"
            ),
        )
        .advise("run `changefeed migrate`")),
        SchemaState::At(found) => Err(too_new(found)),
    }
}

fn too_new(found: i32) -> Error {
    Error::new(
        Kind::SchemaTooNew,
        format!(
            "the database has changefeed schema {found}, this program knows only {SCHEMA_VERSION}"
        ),
    )
    .advise("use a newer changefeed program; nothing was changed")
}

impl SchemaState {
    /// The migrations still to be run, as a range of versions; refuses a newer schema.
    pub fn pending(self) -> Result<std::ops::RangeInclusive<i32>> {
        match self {
            SchemaState::Missing => Ok(1..=SCHEMA_VERSION),
            SchemaState::At(found) if found > SCHEMA_VERSION => Err(too_new(found)),
            SchemaState::At(found) => Ok(found + 1..=SCHEMA_VERSION),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_current_schema_is_accepted_and_the_command_is_named() {
        assert!(require_current(SchemaState::At(SCHEMA_VERSION)).is_ok());
        let missing = require_current(SchemaState::Missing).unwrap_err();
        assert_eq!(missing.kind(), Kind::SchemaMissing);
        assert_eq!(missing.advice(), Some("run `changefeed migrate`"));
        let newer = require_current(SchemaState::At(SCHEMA_VERSION + 1)).unwrap_err();
        assert_eq!(newer.kind(), Kind::SchemaTooNew);
        assert!(SchemaState::At(SCHEMA_VERSION + 1).pending().is_err());
        assert!(
            SchemaState::At(SCHEMA_VERSION)
                .pending()
                .unwrap()
                .is_empty()
        );
    }
}
