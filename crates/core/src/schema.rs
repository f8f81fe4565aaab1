//! Which version of our tables a database has, and what that means for this program.

use serde::Serialize;

use crate::{Error, Kind, Result};

/// The version of the schema that this program was written for; the same number on every
/// database.
pub const SCHEMA_VERSION: i32 = 1;

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
    /// The migration itself, a file for each part of it. The head of the first has a line `-- Older programs: `.
    pub files: &'static [&'static str],
}

impl MigrationStep {
    /// All of its files, in their order.
    pub fn sql(&self) -> String {
        self.files.join("\n")
    }

    /// FNV-1a over the text, in hexadecimal digits. It finds a migration that was edited after it had been
    /// applied; it is no protection against forgery.
    pub fn checksum(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.sql().bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        format!("{hash:016x}")
    }

    /// Whether programs of the version before may run while and after it is applied, as its head says.
    pub fn older_programs(&self) -> &'static str {
        let first = self.files.first().copied().unwrap_or_default();
        let head = first.lines().take_while(|line| line.starts_with("--"));
        let mut said = head.filter_map(|line| line.strip_prefix("-- Older programs: "));
        said.next().unwrap_or_default()
    }

    /// The migration, followed by what notes in this table that it was applied.
    pub fn recorded_in(&self, table: &str) -> String {
        let (version, checksum) = (self.version, self.checksum());
        let sql = self.sql();
        let sql = sql.trim_end();
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

/// The version that these migrations lead to.
fn newest(steps: &[MigrationStep]) -> i32 {
    steps.last().map_or(0, |step| step.version)
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
        SchemaState::At(found) => Err(too_new(found, SCHEMA_VERSION)),
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

fn too_new(found: i32, known: i32) -> Error {
    Error::new(
        Kind::SchemaTooNew,
        format!("the database has changefeed schema {found}, this program knows only {known}"),
    )
    .advise("use a newer changefeed program; nothing was changed")
}

impl SchemaState {
    /// What the versions and checksums that a database has recorded mean for these migrations.
    pub fn of(applied: &[(i32, String)], steps: &[MigrationStep]) -> SchemaState {
        let Some(newest) = applied.iter().map(|(version, _)| *version).max() else {
            return SchemaState::Missing;
        };
        if newest > self::newest(steps) {
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

    /// What there is to do to reach the newest of these migrations, and those that do it; refuses a newer schema.
    pub fn pending(self, steps: &[MigrationStep]) -> Result<(Migration, &[MigrationStep])> {
        let to = newest(steps);
        let from = match self {
            SchemaState::Missing => 0,
            SchemaState::At(found) if found > to => return Err(too_new(found, to)),
            SchemaState::At(found) => found,
            SchemaState::Changed(version) => return Err(changed(version)),
        };
        let done = steps.partition_point(|step| step.version <= from);
        Ok((Migration { from, to }, &steps[done..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [MigrationStep; 2] = [
        MigrationStep {
            version: 1,
            files: &[
                "-- One.\n-- Older programs: there are none.\nselect 1;\n",
                "select 2;\n",
            ],
        },
        MigrationStep {
            version: 2,
            files: &["-- Two.\n\n-- Older programs: not in the head.\n"],
        },
    ];

    fn noted(n: usize) -> (i32, String) {
        (STEPS[n].version, STEPS[n].checksum())
    }

    #[test]
    fn a_migration_that_was_changed_or_left_out_is_noticed() {
        assert_eq!(STEPS[0].older_programs(), "there are none.");
        assert_eq!(STEPS[1].older_programs(), "");
        let state = |applied: &[(i32, String)]| SchemaState::of(applied, &STEPS);
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
        assert_eq!(state(&[(3, String::new())]), SchemaState::At(3));
    }

    #[test]
    fn what_is_missing_is_done_and_no_more() {
        let pending = |state: SchemaState| {
            let (migration, steps) = state.pending(&STEPS).unwrap();
            let steps: Vec<i32> = steps.iter().map(|step| step.version).collect();
            ((migration.from, migration.to), steps)
        };
        assert_eq!(pending(SchemaState::Missing), ((0, 2), vec![1, 2]));
        assert_eq!(pending(SchemaState::At(1)), ((1, 2), vec![2]));
        assert_eq!(pending(SchemaState::At(2)), ((2, 2), vec![]));
        for refused in [SchemaState::At(3), SchemaState::Changed(1)] {
            let error = refused.pending(&STEPS).unwrap_err();
            assert_eq!(error.kind(), Kind::SchemaTooNew);
        }
        assert!(STEPS[0].sql().ends_with("select 1;\n\nselect 2;\n"));
    }

    #[test]
    fn only_the_current_schema_is_accepted_and_the_command_is_named() {
        assert!(require_current(SchemaState::At(SCHEMA_VERSION)).is_ok());
        let missing = require_current(SchemaState::Missing).unwrap_err();
        assert_eq!(missing.kind(), Kind::SchemaMissing);
        assert_eq!(missing.advice(), Some("run `changefeed migrate`"));
        let older = require_current(SchemaState::At(SCHEMA_VERSION - 1)).unwrap_err();
        assert_eq!(older.kind(), Kind::SchemaTooOld);
        assert_eq!(older.advice(), Some("run `changefeed migrate`"));
        let newer = require_current(SchemaState::At(SCHEMA_VERSION + 1)).unwrap_err();
        assert_eq!(newer.kind(), Kind::SchemaTooNew);
    }
}
