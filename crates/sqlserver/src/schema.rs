//! Installing and removing the schema.

use changefeed_core::{Error, Finding, Kind, Migration, Result, SCHEMA_VERSION, SchemaState};

use crate::connection::Connection;
use crate::session::Session;
use crate::{quote, surroundings};

/// Every step, by ascending version.
const MIGRATIONS: [(i32, &str); 6] = [
    (1, include_str!("../migrations/0001_feeds.sql")),
    (
        2,
        concat!(
            include_str!("../migrations/0002_ulid_locks.sql"),
            "\n",
            include_str!("../migrations/0002_ulids.sql")
        ),
    ),
    (3, include_str!("../migrations/0003_events.sql")),
    (4, include_str!("../migrations/0004_watches.sql")),
    (5, include_str!("../migrations/0005_access.sql")),
    (6, include_str!("../migrations/0006_clean_up.sql")),
];

/// Keeps migrations apart, until the transaction ends. Locks of Babelfish are those of the server, so
/// the name is told apart by the database.
const LOCK: &str = "declare @result int, @lock nvarchar(255) = concat(N'changefeed.migrate/', db_id()); \
     exec @result = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive', \
         @LockOwner = 'Transaction', @LockTimeout = 120000; \
     if @result < 0 throw 55000, 'changefeed: another migration is at work', 1";

/// The SQL that installs everything into an empty database, for people who run it themselves.
pub fn migration_script() -> String {
    let steps: Vec<&str> = MIGRATIONS.iter().map(|(_, sql)| *sql).collect();
    format!(
        "-- Run this with sqlcmd -b -I, or with any tool that stops at the first error.\n\
         set xact_abort on;\nset quoted_identifier on;\nset ansi_nulls on;\nGO\n\
         begin transaction;\nGO\n\n{}\ncommit transaction;\nGO\n",
        steps.join("\n")
    )
}

pub(crate) async fn installed(connection: &mut Connection) -> Result<SchemaState> {
    let row = connection
        .one(
            "select object_id(N'changefeed.schema_version'), \
             convert(bit, case when schema_id(N'changefeed') is not null \
               and has_perms_by_name(N'changefeed', N'SCHEMA', N'SELECT') = 0 then 1 else 0 end), \
             convert(nvarchar(128), user_name())",
            &[],
        )
        .await?;
    if row.get::<i32, _>(0).is_none() {
        if row.get::<bool, _>(1) != Some(true) {
            return Ok(SchemaState::Missing);
        }
        let user = quote::identifier(row.get::<&str, _>(2).unwrap_or_default());
        return Err(Error::new(
            Kind::Permission,
            "there is a schema changefeed in this database, and this user may see nothing of it",
        )
        .advise(format!(
            "alter role changefeed_admin add member {user}; or changefeed_reader, or changefeed_writer"
        )));
    }
    let row = connection
        .one(
            "select convert(int, coalesce(max(version), 0)) from changefeed.schema_version",
            &[],
        )
        .await?;
    Ok(SchemaState::At(row.get(0).unwrap_or(0)))
}

impl Session {
    pub(crate) async fn schema(&mut self) -> Result<SchemaState> {
        installed(&mut self.connection).await
    }

    pub(crate) async fn migrate(&mut self) -> Result<Migration> {
        let connection = &mut *self.connection;
        connection.begin().await?;
        // Instances that start together queue here; all but the first find nothing to do.
        connection.batch(LOCK).await?;
        let pending = installed(connection).await?.pending()?;
        let from = pending.start() - 1;
        for (version, sql) in MIGRATIONS {
            if pending.contains(&version) {
                connection
                    .script(sql)
                    .await
                    .map_err(|error| explain(version, error))?;
            }
        }
        connection.commit().await?;
        Ok(Migration {
            from,
            to: SCHEMA_VERSION,
        })
    }

    pub(crate) async fn uninstall(&mut self) -> Result<()> {
        let connection = &mut *self.connection;
        // Who may see nothing must not believe that there is nothing.
        installed(connection).await?;
        connection.begin().await?;
        connection.batch(LOCK).await?;
        let foreign: Vec<String> = connection
            .query(include_str!("sql/foreign_tables.sql"), &[])
            .await?
            .iter()
            .filter_map(|row| row.get::<&str, _>(0).map(str::to_owned))
            .collect();
        if !foreign.is_empty() {
            return Err(Error::invalid(format!(
                "the schema changefeed also holds tables that are not ours: {}",
                foreign.join(", ")
            ))
            .advise("move them to another schema"));
        }
        // One statement after the other: what refers to something goes before it.
        for row in connection
            .query(include_str!("sql/uninstall.sql"), &[])
            .await?
        {
            if let Some(drop) = row.get::<&str, _>(0) {
                connection.batch(drop).await?;
            }
        }
        connection.commit().await?;
        Ok(())
    }

    pub(crate) async fn server_findings(&mut self) -> Result<Vec<Finding>> {
        let connection = &mut *self.connection;
        let schema = installed(connection).await?;
        surroundings::look(connection, schema).await
    }
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

    /// By a part of its key, whoever writes its own row waits for that of a dead holder.
    #[test]
    fn the_row_of_a_ulid_transaction_is_written_by_its_whole_key() {
        let script = include_str!("../migrations/0002_ulids.sql");
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

    /// Whoever may alter a procedure of ours may read what its owner may.
    #[test]
    fn no_role_may_alter_anything() {
        for (_, script) in MIGRATIONS {
            let grants: Vec<&str> = script
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
        let script = include_str!("../migrations/0001_feeds.sql");
        let trim = include_str!("sql/trim.sql");
        for text in [script, trim] {
            let count = |what: &str| text.matches(what).count();
            let direct = "update changefeed.shard with (updlock, forceseek)";
            assert_eq!(count("update changefeed.shard"), count(direct));
            let locking = "from changefeed.shard s with (updlock, forceseek)";
            assert_eq!(count(direct) + count(locking), 1);
            assert_eq!(count("from changefeed.shard s with (forceseek)"), 1);
            let updates =
                statements_of(text, "update s\n").len() + statements_of(text, "update s set").len();
            assert_eq!(updates + count(direct), 2);
        }
    }
}
