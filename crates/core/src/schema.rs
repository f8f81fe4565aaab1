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
    /// The migration of this version is not the one that this program has.
    Changed(i32),
}

/// Brings the schema from the version before to its own.
#[derive(Debug, Clone, Copy)]
pub struct MigrationStep {
    /// The version that it leads to.
    pub version: i32,
    /// The migration itself. Its head has a line `-- Older programs: `.
    pub sql: &'static str,
}

impl MigrationStep {
    /// FNV-1a over the text, in hexadecimal digits. It finds a migration that was edited after it had been
    /// applied; it is no protection against forgery.
    pub fn checksum(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.sql.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        format!("{hash:016x}")
    }

    /// Whether programs of the version before may run while and after it is applied, as its head says.
    pub fn older_programs(&self) -> &'static str {
        let head = self.sql.lines().take_while(|line| line.starts_with("--"));
        let mut said = head.filter_map(|line| line.strip_prefix("-- Older programs: "));
        said.next().unwrap_or_default()
    }

    /// The migration, followed by what notes in this table that it was applied.
    pub fn recorded_in(&self, table: &str) -> String {
        let (version, checksum) = (self.version, self.checksum());
        let sql = self.sql.trim_end();
        format!(
            "{sql}\n\ninsert into {table} (version, checksum) values ({version}, '{checksum}');\n"
        )
    }
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
        SchemaState::Changed(version) => Err(changed(version)),
    }
}

fn changed(version: i32) -> Error {
    Error::new(
        Kind::SchemaTooNew,
        format!("migration {version} in this database is not the one of this program"),
    )
    .advise(
        "use the build of changefeed that installed it; or, if all feeds, events and watches may be lost, run \
         `changefeed uninstall` and `changefeed migrate`",
    )
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
    /// What the versions and checksums that a database has recorded mean for these migrations.
    pub fn of(applied: &[(i32, String)], steps: &[MigrationStep]) -> SchemaState {
        let Some(newest) = applied.iter().map(|(version, _)| *version).max() else {
            return SchemaState::Missing;
        };
        if newest > SCHEMA_VERSION {
            return SchemaState::At(newest);
        }
        let known = |version: i32, checksum: &str| {
            let mut steps = steps.iter();
            steps.any(|step| step.version == version && step.checksum() == checksum)
        };
        let unknown = applied
            .iter()
            .filter(|(v, c)| !known(*v, c))
            .map(|(v, _)| *v);
        let left_out = (1..newest).filter(|version| !applied.iter().any(|(v, _)| v == version));
        match unknown.chain(left_out).min() {
            Some(version) => SchemaState::Changed(version),
            None => SchemaState::At(newest),
        }
    }

    /// The migrations still to be run, as a range of versions; refuses a newer schema.
    pub fn pending(self) -> Result<std::ops::RangeInclusive<i32>> {
        match self {
            SchemaState::Missing => Ok(1..=SCHEMA_VERSION),
            SchemaState::At(found) if found > SCHEMA_VERSION => Err(too_new(found)),
            SchemaState::At(found) => Ok(found + 1..=SCHEMA_VERSION),
            SchemaState::Changed(version) => Err(changed(version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_that_was_changed_or_left_out_is_noticed() {
        let step = |version, sql| MigrationStep { version, sql };
        let steps = [
            step(
                1,
                "-- One.\n-- Older programs: there are none.\nselect 1;\n",
            ),
            step(2, "-- Two.\n\n-- Older programs: not in the head.\n"),
        ];
        assert_eq!(steps[0].older_programs(), "there are none.");
        assert_eq!(steps[1].older_programs(), "");
        let noted = |n: usize| (steps[n].version, steps[n].checksum());
        let state = |applied: &[(i32, String)]| SchemaState::of(applied, &steps);
        assert_eq!(state(&[]), SchemaState::Missing);
        assert_eq!(state(&[noted(0)]), SchemaState::At(1));
        assert_eq!(state(&[noted(0), noted(1)]), SchemaState::At(2));
        assert_eq!(state(&[noted(1)]), SchemaState::Changed(1));
        let edited = (1, noted(1).1);
        assert_eq!(state(&[edited.clone(), noted(1)]), SchemaState::Changed(1));
        let error = require_current(state(&[edited])).unwrap_err();
        assert!(
            error
                .advice()
                .is_some_and(|a| a.contains("changefeed uninstall"))
        );
        assert_eq!(
            state(&[noted(0), (0, String::new())]),
            SchemaState::Changed(0)
        );
        // Whatever a newer program has done before that: its version is what counts.
        let newer = (SCHEMA_VERSION + 1, String::new());
        assert_eq!(state(&[newer]), SchemaState::At(SCHEMA_VERSION + 1));
    }

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
