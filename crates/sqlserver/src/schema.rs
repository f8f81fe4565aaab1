//! Installing and removing the schema.

use changefeed_core::{
    Error, Finding, Kind, Migration, MigrationStep, Result, SCHEMA_VERSION, SchemaState, words,
};

use crate::connection::Connection;
use crate::row::Cells;
use crate::session::Session;
use crate::{quote, surroundings};

/// Every step, by ascending version.
pub const MIGRATIONS: &[MigrationStep] = &[MigrationStep {
    version: 1,
    files: &[
        include_str!("../migrations/0001/feeds.sql"),
        include_str!("../migrations/0001/sweep.sql"),
        include_str!("../migrations/0001/reading.sql"),
        include_str!("../migrations/0001/capture.sql"),
        include_str!("../migrations/0001/consumers.sql"),
        include_str!("../migrations/0001/roles.sql"),
        include_str!("../migrations/0001/ulid_locks.sql"),
        include_str!("../migrations/0001/ulids.sql"),
        include_str!("../migrations/0001/events.sql"),
        include_str!("../migrations/0001/watches.sql"),
        include_str!("../migrations/0001/access.sql"),
    ],
}];

const _: () = assert!(MIGRATIONS.len() == SCHEMA_VERSION as usize);

/// The step with the note that it was applied.
fn recorded(step: &MigrationStep) -> String {
    step.recorded_in("changefeed.schema_version") + "GO\n"
}

/// Keeps migrations apart, until the transaction ends. Locks of Babelfish are those of the server, so
/// the name is told apart by the database.
const LOCK: &str = "declare @result int, @lock nvarchar(255) = concat(N'changefeed.migrate/', db_id()); \
     exec @result = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive', \
         @LockOwner = 'Transaction', @LockTimeout = 120000; \
     if @result < 0 throw 55000, 'changefeed: another migration is at work', 1";

/// The SQL that installs everything into an empty database, for people who run it themselves.
pub fn migration_script() -> String {
    let steps: Vec<String> = MIGRATIONS.iter().map(recorded).collect();
    format!(
        "-- Run this with sqlcmd -b -I, or with any tool that stops at the first error.\n\
         set xact_abort on;\nset quoted_identifier on;\nset ansi_nulls on;\nGO\n\
         begin transaction;\nGO\n\n{}\ncommit transaction;\nGO\n",
        steps.join("\n")
    )
}

pub(crate) async fn installed(
    connection: &mut Connection,
    steps: &[MigrationStep],
) -> Result<SchemaState> {
    let row = connection
        .one(include_str!("sql/installed.sql"), &[])
        .await?;
    if row.maybe::<i32>(0)?.is_none() {
        if !row.says(1)? {
            return match row.says(3)? {
                true => Err(not_ours(row.take(4)?, row.says(5)?)),
                false => Ok(SchemaState::Missing),
            };
        }
        let user = quote::identifier(row.take::<&str>(2)?);
        return Err(Error::new(
            Kind::Permission,
            "there is a schema changefeed in this database, and this user may see nothing of it",
        )
        .advise(format!(
            "alter role changefeed_admin add member {user}; or changefeed_reader, or changefeed_writer"
        )));
    }
    let rows = connection
        .query(
            "select version, checksum from changefeed.schema_version",
            &[],
        )
        .await?;
    let applied = rows.iter().map(|row| Ok((row.take(0)?, row.text(1)?)));
    let applied = applied.collect::<Result<Vec<(i32, String)>>>()?;
    Ok(SchemaState::of(&applied, steps))
}

impl Session {
    pub(crate) async fn schema(&mut self) -> Result<SchemaState> {
        installed(&mut self.connection, MIGRATIONS).await
    }

    pub(crate) async fn migrate(&mut self, steps: &[MigrationStep]) -> Result<Migration> {
        let connection = &mut *self.connection;
        connection.begin().await?;
        // Instances that start together queue here; all but the first find nothing to do.
        connection.batch(LOCK).await?;
        let (migration, pending) = installed(connection, steps).await?.pending(steps)?;
        for step in pending {
            connection
                .script(&recorded(step))
                .await
                .map_err(|error| explain(step.version, error))?;
        }
        connection.commit().await?;
        Ok(migration)
    }

    pub(crate) async fn uninstall(&mut self) -> Result<()> {
        let connection = &mut *self.connection;
        // A user that may see nothing must not conclude that nothing is there.
        installed(connection, MIGRATIONS).await?;
        connection.begin().await?;
        connection.batch(LOCK).await?;
        let foreign: Vec<String> = connection
            .query(include_str!("sql/foreign_tables.sql"), &[])
            .await?
            .iter()
            .map(|row| row.text(0))
            .collect::<Result<_>>()?;
        if !foreign.is_empty() {
            return Err(words::foreign_tables(&foreign).advise("move them to another schema"));
        }
        // One statement after the other: what refers to something goes before it.
        for row in connection
            .query(include_str!("sql/uninstall.sql"), &[])
            .await?
        {
            if let Some(drop) = row.maybe::<&str>(0)? {
                connection.batch(drop).await?;
            }
        }
        connection.commit().await?;
        Ok(())
    }

    pub(crate) async fn server_findings(&mut self) -> Result<Vec<Finding>> {
        let connection = &mut *self.connection;
        let schema = installed(connection, MIGRATIONS).await?;
        surroundings::look(connection, schema).await
    }
}

/// A schema of our name that we have not made: how many things are in it, and whether they are those of the
/// library that this program comes from.
fn not_ours(things: i32, of_ancestor: bool) -> Error {
    let (message, advice) = match (things, of_ancestor) {
        (0, _) => (
            "there is an empty schema changefeed in this database, and migrate makes its own",
            "drop schema changefeed; and run migrate again",
        ),
        (_, true) => (
            "the schema changefeed in this database is that of mssql-changefeed, the library that this program \
             comes from: its tables have the same names, and nothing was changed",
            "docs/sqlserver.md tells under 'Coming from mssql-changefeed' how its feeds move over with their numbers",
        ),
        _ => (
            "there is a schema changefeed in this database that this program has not made",
            "use another database, or move what is in that schema to another one: alter schema OTHER transfer \
             changefeed.NAME",
        ),
    };
    Error::invalid(message).advise(advice)
}

fn explain(version: i32, error: Error) -> Error {
    let advice = match error.kind() {
        Kind::Permission => {
            "grant CREATE SCHEMA, CREATE TABLE, CREATE PROCEDURE, CREATE FUNCTION and CREATE ROLE \
             to this user, or give the output of `changefeed migrate --print` to somebody who has \
             them"
        }
        _ => "nothing was changed",
    };
    Error::new(error.kind(), format!("migration {version} failed: {error}"))
        .advise(advice)
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statements that begin so, to their ends.
    fn statements_of<'a>(script: &'a str, beginning: &'a str) -> Vec<&'a str> {
        script
            .match_indices(beginning)
            .filter_map(|(at, _)| script[at..].split(';').next())
            .collect()
    }

    #[test]
    fn a_schema_of_somebody_else_is_named() {
        assert!(not_ours(0, false).message().contains("empty schema"));
        assert!(not_ours(9, false).advice().unwrap().contains("transfer"));
        let ancestor = not_ours(9, true);
        assert!(ancestor.message().contains("mssql-changefeed"));
        // The advice leads somewhere.
        let guide = include_str!("../../../docs/sqlserver.md");
        assert!(guide.contains("\n## Coming from mssql-changefeed\n"));
    }

    /// By a part of its key, a holder that writes its own row would wait for that of a dead one.
    #[test]
    fn the_row_of_a_ulid_transaction_is_written_by_its_whole_key() {
        let script = include_str!("../migrations/0001/ulids.sql");
        let mut written = statements_of(script, "update changefeed.ulid_life");
        written.extend(statements_of(script, "delete from changefeed.ulid_life"));
        // What others have left behind is removed past those who are still there.
        written.retain(|statement| !statement.contains("readpast"));
        assert_eq!(written.len(), 3);
        for statement in written {
            for part in ["feed_id", "shard_id", "incidents", "transaction_id"] {
                let named = format!("{part} = @{part}");
                assert!(statement.contains(&named), "{part}: {statement}");
            }
        }
    }

    /// A user that may alter a procedure of ours may read what its owner may.
    #[test]
    fn no_role_may_alter_anything() {
        for step in MIGRATIONS {
            let sql = step.sql();
            let grants: Vec<&str> = sql
                .lines()
                .filter(|line| line.trim_start().starts_with("grant "))
                .collect();
            for right in ["alter", "control", "references", "take ownership"] {
                let given = grants.iter().find(|grant| grant.contains(right));
                assert_eq!(given, None);
            }
        }
    }

    /// Small tables are scanned unless that is forbidden, and a scan waits for every shard.
    #[test]
    fn sweeping_and_trimming_lock_one_shard() {
        let script = &MIGRATIONS[0].sql();
        let trim = include_str!("sql/trim.sql");
        for text in [script, trim] {
            let count = |what: &str| text.matches(what).count();
            let direct = "update changefeed.shard with (updlock, forceseek)";
            assert_eq!(count("update changefeed.shard "), count(direct));
            let locking = "from changefeed.shard s with (updlock, forceseek)";
            assert_eq!(count(direct) + count(locking), 1);
            assert_eq!(count("from changefeed.shard s with (forceseek)"), 1);
            let updates =
                statements_of(text, "update s\n").len() + statements_of(text, "update s set").len();
            assert_eq!(updates + count(direct), 2);
        }
    }
}

/// What the parser cannot see: the order of a migration, and the list of our tables.
#[cfg(test)]
mod order {
    use std::collections::{BTreeMap, BTreeSet};

    use super::MIGRATIONS;
    use crate::platform::{Platform, batches};

    /// The names of our schema in a text, without comments.
    fn names(sql: &str) -> BTreeSet<String> {
        let code: String = sql
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default())
            .flat_map(|line| [line, "\n"])
            .collect();
        code.split("changefeed.")
            .skip(1)
            .map(|rest| {
                rest.trim_start_matches('[')
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect::<String>()
            })
            .filter(|name| !name.is_empty())
            .collect()
    }

    /// The kind and the name of what a batch creates.
    fn created(batch: &str) -> Option<(String, String)> {
        let line = batch
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with("--"))?;
        let mut words = line.split_whitespace();
        if words.next()? != "create" {
            return None;
        }
        let kind = words.next()?.to_owned();
        let name = names(words.next()?).pop_first()?;
        Some((kind, name))
    }

    fn every_batch(platform: Platform) -> Vec<String> {
        MIGRATIONS
            .iter()
            .flat_map(|step| step.files)
            .flat_map(|file| batches(&platform.script(file)))
            .collect()
    }

    /// Names in procedures are resolved when they are called, so the parser accepts a migration
    /// that calls one before the functions it needs exist; the server does not.
    #[test]
    fn what_a_migration_calls_has_all_that_it_needs() {
        for platform in [Platform::SqlServer, Platform::Babelfish] {
            let mut exist = BTreeMap::<String, BTreeSet<String>>::new();
            let mut called = 0;
            let all = every_batch(platform);
            let ours: BTreeSet<String> = all.iter().filter_map(|b| Some(created(b)?.1)).collect();
            for batch in &all {
                let module = created(batch).filter(|(kind, _)| {
                    matches!(kind.as_str(), "procedure" | "function" | "trigger")
                });
                if let Some((_, name)) = module {
                    let mut needs = names(batch);
                    needs.remove(&name);
                    exist.insert(name, needs);
                    continue;
                }
                let own = created(batch).map(|(_, name)| name);
                let mut seen = BTreeSet::new();
                let mut open: Vec<String> = names(batch).into_iter().collect();
                while let Some(name) = open.pop() {
                    if !ours.contains(&name)
                        || Some(&name) == own.as_ref()
                        || !seen.insert(name.clone())
                    {
                        continue;
                    }
                    let Some(needs) = exist.get(&name) else {
                        panic!("{platform:?}: `{name}` is needed before it exists, by:\n{batch}");
                    };
                    called += needs.len();
                    open.extend(needs.iter().cloned());
                }
                if let Some(name) = own {
                    exist.insert(name, BTreeSet::new());
                }
            }
            assert!(called > 0, "no migration calls a module of ours");
        }
    }

    /// Uninstalling refuses to remove what is not ours, and must know what is.
    #[test]
    fn every_table_is_known_as_ours() {
        let known = include_str!("sql/foreign_tables.sql");
        let tables: Vec<String> = every_batch(Platform::SqlServer)
            .iter()
            .filter_map(|batch| created(batch))
            .filter_map(|(kind, name)| (kind == "table").then_some(name))
            .collect();
        assert!(tables.len() > 20, "{tables:?}");
        for table in tables {
            assert!(
                known.contains(&format!("N'{table}'")),
                "{table} is not in foreign_tables.sql"
            );
        }
    }
}
