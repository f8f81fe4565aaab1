//! Installing and removing the schema.

use changefeed_core::{
    Error, Finding, Kind, Migration, MigrationStep, Result, SCHEMA_VERSION, SchemaState, words,
};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;
use crate::surroundings;

/// Every step, by ascending version.
pub const MIGRATIONS: &[MigrationStep] = &[MigrationStep {
    version: 1,
    files: &[
        include_str!("../migrations/0001/feeds.sql"),
        include_str!("../migrations/0001/numbering.sql"),
        include_str!("../migrations/0001/sweep.sql"),
        include_str!("../migrations/0001/capture.sql"),
        include_str!("../migrations/0001/consumers.sql"),
        include_str!("../migrations/0001/ulid_locks.sql"),
        include_str!("../migrations/0001/ulids.sql"),
        include_str!("../migrations/0001/events.sql"),
        include_str!("../migrations/0001/watches.sql"),
        include_str!("../migrations/0001/tables.sql"),
        include_str!("../migrations/0001/reading.sql"),
        include_str!("../migrations/0001/clock.sql"),
        include_str!("../migrations/0001/access.sql"),
        include_str!("../migrations/0001/rights.sql"),
    ],
}];

const _: () = assert!(MIGRATIONS.len() == SCHEMA_VERSION as usize);

/// Where it is noted which of them were applied.
const RECORD: &str = "changefeed.schema_version";

/// An arbitrary key for the advisory lock that keeps migrations apart.
const MIGRATION_LOCK: i64 = 0x6368_616e_6765_6664;

/// The SQL that installs everything into an empty database, for people who run it themselves.
pub fn migration_script() -> String {
    let steps: Vec<String> = MIGRATIONS.iter().map(|s| s.recorded_in(RECORD)).collect();
    format!("begin;\n\n{}\ncommit;\n", steps.join("\n"))
}

pub(crate) async fn installed(
    client: &impl GenericClient,
    steps: &[MigrationStep],
) -> Result<SchemaState> {
    // Not by to_regclass, which may remember from an earlier look that there was no such schema.
    let row = client
        .query_one(
            "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace \
             where n.nspname = 'changefeed' and c.relname = 'schema_version')",
            &[],
        )
        .await
        .map_err(db)?;
    if !row.take::<bool>(0)? {
        return Ok(SchemaState::Missing);
    }
    let rows = client
        .query(
            "select version, checksum from changefeed.schema_version",
            &[],
        )
        .await
        .map_err(db)?;
    let applied = rows.iter().map(|row| Ok((row.take(0)?, row.take(1)?)));
    let applied = applied.collect::<Result<Vec<(i32, String)>>>()?;
    Ok(SchemaState::of(&applied, steps))
}

impl Session {
    pub(crate) async fn schema(&self) -> Result<SchemaState> {
        installed(&***self, MIGRATIONS).await
    }

    pub(crate) async fn migrate(&mut self, steps: &[MigrationStep]) -> Result<Migration> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        // Instances that start together queue here; all but the first find nothing to do.
        transaction
            .execute("select pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK])
            .await
            .map_err(db)?;
        let state = installed(&*transaction, steps).await?;
        let (migration, pending) = state.pending(steps)?;
        for step in pending {
            let version = step.version;
            let sql = step.recorded_in(RECORD);
            transaction.batch_execute(&sql).await.map_err(|e| {
                let error = db(e);
                let advice = match error.kind() {
                    Kind::Permission => {
                        "grant CREATE on the database to this user, or give the output of \
                         `changefeed migrate --print` to somebody who has it"
                    }
                    _ => "nothing was changed",
                };
                Error::new(error.kind(), format!("migration {version} failed: {error}"))
                    .advise(advice)
                    .caused_by(error)
            })?;
        }
        transaction.commit().await.map_err(db)?;
        Ok(migration)
    }

    pub(crate) async fn uninstall(&mut self) -> Result<()> {
        // Instances at work lock our tables in an order of their own, and where that is a deadlock the
        // server may let it be us who gives way.
        let mut again = 0..10;
        loop {
            match self.drop_schema().await {
                Err(error) if error.kind() == Kind::Busy && again.next().is_some() => {
                    tracing::warn!(%error, "instances are at work; trying again");
                }
                ended => return ended,
            }
        }
    }

    pub(crate) async fn server_findings(&self) -> Result<Vec<Finding>> {
        surroundings::look(&***self).await
    }
}

impl Session {
    /// Drops what is ours, in one transaction.
    pub(crate) async fn drop_schema(&mut self) -> Result<()> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        // Whatever its version: everything of ours is in our schema, or depends on it.
        let foreign: Vec<String> = transaction
            .query(include_str!("sql/foreign_tables.sql"), &[])
            .await
            .map_err(db)?
            .iter()
            .map(|row| row.take(0))
            .collect::<Result<_>>()?;
        if !foreign.is_empty() {
            return Err(words::foreign_tables(&foreign).advise(
                "move them to another schema; a user called 'changefeed' creates tables here",
            ));
        }
        // Takes the triggers on the application's tables along, whoever owns these tables.
        transaction
            .batch_execute("drop schema if exists changefeed cascade")
            .await
            .map_err(db)?;
        transaction.commit().await.map_err(db)?;
        Ok(())
    }
}
