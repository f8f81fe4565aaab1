//! Watches: functions that are handed the changed rows of a table.

mod loading;

use std::time::Duration;

use changefeed_core::{
    Batch, BatchOutcome, Error, Finding, Fold, Kind, Parked, ParkedRows, Result, RowOperation,
    Settled, TableName, Take, Watch, WatchFrom, WatchName, WatchSettings, WatchSpec, WatchStatus,
    fill, suggested_workers,
};
#[cfg(any(test, feature = "testing"))]
pub(crate) use loading::load_sql;
use serde_json::value::RawValue;
use tiberius::Row;

use crate::backlog::{Backlog, Taken, send};
use crate::connection::Connection;
use crate::row::Cells;
use crate::session::Session;
use crate::table_trigger::give_up;
use crate::table_trigger::in_use;
use crate::tracking::{Stored, Tracked, exists, function_sql, leases_name};
use crate::watch_triggers::Triggers;
use crate::{json, watch_findings, watch_registry, watch_rights};

impl Session {
    pub(crate) async fn open_watch(&mut self, spec: &WatchSpec) -> Result<Watch> {
        let connection = &mut *self.connection;
        let opening = Opening::look(connection, spec, false).await?;
        connection.begin().await?;
        let made = async {
            let mut triggers = Triggers::default();
            let watch = opening.make(connection, spec, &mut triggers).await?;
            triggers.settle(connection).await?;
            Ok(watch)
        };
        let watch = match made.await {
            Ok(watch) => watch,
            Err(error) => {
                give_up(connection).await;
                return Err(error);
            }
        };
        connection.commit().await?;
        self.opened(&watch).await?;
        Ok(watch)
    }

    pub(crate) async fn watches(&mut self) -> Result<Vec<Watch>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/watches.sql"), &[])
            .await?;
        rows.iter().map(stored).collect()
    }

    pub(crate) async fn watch_status(
        &mut self,
        watch: &Watch,
        parked: usize,
    ) -> Result<WatchStatus> {
        let connection = &mut *self.connection;
        let sql = status_sql(&watch.function_id);
        let rows = match send(connection, &sql?).await {
            Err(error) if error.kind() == Kind::NotFound => {
                let known = watch_registry::known(connection, &watch.name).await?;
                return known
                    .map_or_else(|| Err(watch.name.unknown()), |_| Ok(without_state(watch)));
            }
            rows => rows?,
        };
        let row = rows.first().ok_or_else(|| watch.name.unknown())?;
        let (unprocessed, given_up) = (row.take(0)?, row.take(2)?);
        let per_worker = i64::from(row.maybe::<i32>(6)?.unwrap_or(1));
        let parked_changes = match given_up {
            0 => Vec::new(),
            _ => parked_changes(connection, watch, parked).await?,
        };
        Ok(WatchStatus {
            watch: watch.clone(),
            unprocessed,
            leased: row.take(1)?,
            parked: given_up,
            last_error: row.maybe_text(3)?,
            last_sync_version: row.take(4)?,
            idle_ms: row.maybe(5)?,
            suggested_workers: suggested_workers(unprocessed, per_worker),
            parked_changes,
        })
    }

    pub(crate) async fn take(&mut self, watch: &Watch, take: Take<'_>) -> Result<Option<Batch>> {
        let mut again = true;
        loop {
            let taken = self
                .with_backlog(watch, async |connection, backlog| {
                    backlog.take(connection, take).await
                })
                .await;
            match taken {
                Ok(Taken {
                    batch: Some(batch), ..
                }) => return Ok(Some(batch)),
                Ok(taken) if taken.stale => self.known.backlogs.forget(&watch.leases_table),
                Ok(taken) if taken.loading => self.load(watch).await?,
                Ok(_) => return Ok(None),
                // Tables were renamed, functions came or went: what is known of them is read anew.
                Err(error) if error.kind() == Kind::NotFound && again => again = false,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn held_batches(&mut self, watch: &Watch, owner: &str) -> Result<Vec<Batch>> {
        self.with_backlog(watch, async |connection, backlog| {
            backlog.held_by(connection, owner).await
        })
        .await
    }

    pub(crate) async fn renew(
        &mut self,
        watch: &Watch,
        batch: &Batch,
        lease: Duration,
    ) -> Result<u64> {
        self.with_backlog(watch, async |connection, backlog| {
            backlog.renew(connection, batch, lease).await
        })
        .await
    }

    pub(crate) async fn settle(
        &mut self,
        watch: &Watch,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled> {
        self.with_backlog(watch, async |connection, backlog| {
            backlog.settle(connection, batch, outcome, settings).await
        })
        .await
    }

    pub(crate) async fn retry_parked(&mut self, watch: &Watch, which: ParkedRows) -> Result<u64> {
        self.with_backlog(watch, async |connection, backlog| {
            backlog.retry_parked(connection, which).await
        })
        .await
    }

    pub(crate) async fn reset_watch(&mut self, watch: &Watch, from: WatchFrom) -> Result<()> {
        let connection = &mut *self.connection;
        let table_id = i32::try_from(watch.table_id).unwrap_or(-1);
        let (tracked, _) = Tracked::load(connection, table_id, &watch.name).await?;
        // What happened until now belongs to what is forgotten, but not for the other functions.
        watch_registry::drain(connection, &tracked, watch).await?;
        connection.begin().await?;
        watch_registry::enter(connection, table_id).await?;
        let leases = leases_name(&watch.function_id, watch.table_id);
        if !exists(connection, &leases).await? {
            connection.batch(&tracked.leases_sql(&leases)?).await?;
            let came = format!(
                "update changefeed.watched_table set generation = generation + 1 \
                 where table_id = {table_id}"
            );
            connection.batch(&came).await?;
        }
        // Nobody else is there: one lock instead of one for each row, however many they are.
        let forget = format!(
            "delete from changefeed.{leases} with (tablockx); \
             update changefeed.watch set loading = {}, loaded_to = null where function_id = {}",
            match from {
                WatchFrom::Beginning => "0",
                WatchFrom::Now => "null",
            },
            function_sql(&watch.function_id)
        );
        connection.batch(&forget).await?;
        connection.commit().await?;
        self.known.backlogs.forget(&watch.leases_table);
        self.load(watch).await
    }

    pub(crate) async fn drop_watch(&mut self, watch: &Watch) -> Result<()> {
        let connection = &mut *self.connection;
        connection.begin().await?;
        let removed = async {
            let mut triggers = Triggers::default();
            remove(connection, watch, &mut triggers).await?;
            triggers.settle(connection).await
        };
        if let Err(error) = removed.await {
            give_up(connection).await;
            return Err(error);
        }
        connection.commit().await?;
        self.known.backlogs.forget(&watch.leases_table);
        Ok(())
    }

    pub(crate) async fn watch_findings(&mut self) -> Result<Vec<Finding>> {
        let watches = self.watches().await?;
        let connection = &mut *self.connection;
        let mut findings = Vec::new();
        for watch in &watches {
            findings.extend(watch_findings::find(connection, watch).await?);
        }
        Ok(findings)
    }
}

/// A watch that is about to be made, or to be made anew.
pub(crate) struct Opening {
    watch: Watch,
    tracked: Tracked,
    columns: bool,
}

impl Opening {
    /// Looks at what there is, and gives what happened until now to those who watch the table already,
    /// which takes transactions of its own. One that is dropped before is not there any more.
    pub(crate) async fn look(
        connection: &mut Connection,
        spec: &WatchSpec,
        dropped_before: bool,
    ) -> Result<Self> {
        let known = match dropped_before {
            false => watch_registry::known(connection, &spec.name).await?,
            true => None,
        };
        let found = Tracked::find(connection, &spec.table).await;
        let (tracked, stored) = match (found, &known) {
            (Err(error), Some(known)) if error.kind() == Kind::NotFound => {
                return Err(
                    watch_registry::elsewhere(connection, &spec.name, known.table_id).await?,
                );
            }
            (found, _) => found?,
        };
        let columns: Vec<&str> = tracked
            .table
            .columns
            .iter()
            .map(|c| c.name.as_str())
            .collect();
        spec.filter
            .check_columns(&tracked.table.name, &columns, Fold::Keep)?;
        if spec.before {
            return Err(Error::new(
                Kind::Unsupported,
                "rows as they were before cannot be had on SQL Server: neither its change tracking nor our trigger \
                 keeps them",
            )
            .advise("leave --with-before out; a feed with --images has the row before and after each change"));
        }
        if let Some(known) = known.as_ref().filter(|k| k.table_id != tracked.id()) {
            return Err(watch_registry::elsewhere(connection, &spec.name, known.table_id).await?);
        }
        // An instance that does not ask for columns leaves them to those that do.
        let columns =
            spec.columns || spec.definition.is_none() && known.as_ref().is_some_and(|k| k.columns);
        let function_id = spec.name.function_id();
        let leases = leases_name(&function_id, i64::from(tracked.id()));
        let watch = Watch {
            name: spec.name.clone(),
            leases_table: format!("changefeed.{leases}"),
            function_id,
            table_id: i64::from(tracked.id()),
            table: tracked.table.name.clone(),
            definition: spec.definition.clone(),
        };
        let begins = known.is_none() || !exists(connection, &leases).await?;
        if begins {
            watch_rights::check_make(connection).await?;
        }
        // The changes may be noted in another way from now on: then all rows are handed over anew.
        let noted = stored.is_some_and(|stored| stored.way == tracked.way);
        if noted && begins {
            watch_registry::drain(connection, &tracked, &watch).await?;
        }
        Ok(Opening {
            watch,
            tracked,
            columns,
        })
    }

    /// Makes what the watch needs, within a transaction that has begun and settles the triggers last.
    pub(crate) async fn make(
        mut self,
        connection: &mut Connection,
        spec: &WatchSpec,
        triggers: &mut Triggers,
    ) -> Result<Watch> {
        let made = self.try_make(connection, spec, triggers).await;
        made.map_err(|error| in_use(error, &self.tracked.table.name))?;
        Ok(self.watch)
    }

    async fn try_make(
        &mut self,
        connection: &mut Connection,
        spec: &WatchSpec,
        triggers: &mut Triggers,
    ) -> Result<()> {
        let Opening {
            watch,
            tracked,
            columns,
        } = self;
        watch_registry::enter(connection, tracked.id()).await?;
        let others = connection
            .query(
                "select top (1) w.name from changefeed.watch w \
                 where w.table_id = @P1 and w.function_id <> @P2 and w.[columns] = 1",
                &[&tracked.id(), &watch.function_id],
            )
            .await?;
        tracked.columns = *columns || !others.is_empty();
        // Somebody else may have made it meanwhile.
        let stored = Stored::load(connection, tracked.id()).await?;
        watch_registry::ensure_table(connection, tracked, stored.as_ref(), triggers).await?;
        watch_registry::register(connection, spec, watch, tracked, *columns).await
    }
}

/// Removes a watch, within a transaction that has begun and settles the triggers last.
pub(crate) async fn remove(
    connection: &mut Connection,
    watch: &Watch,
    triggers: &mut Triggers,
) -> Result<()> {
    let removed = async {
        let table_id = i32::try_from(watch.table_id).unwrap_or(-1);
        watch_registry::enter(connection, table_id).await?;
        watch_registry::remove(connection, watch, triggers).await
    };
    removed.await.map_err(|error| in_use(error, &watch.table))
}

impl Session {
    /// What is left to do when a watch is made and that is committed.
    pub(crate) async fn opened(&mut self, watch: &Watch) -> Result<()> {
        self.known.backlogs.forget(&watch.leases_table);
        self.load(watch).await
    }
}

pub(crate) fn status_sql(function_id: &str) -> Result<String> {
    fill(
        include_str!("sql/watch_status.sql"),
        &[("function_id", function_id)],
    )
}

pub(crate) fn parked_sql(tracked: &Tracked, leases: &str, limit: usize) -> Result<String> {
    fill(
        include_str!("sql/watch_parked.sql"),
        &[
            ("limit", &limit.to_string()),
            ("key", &json::object(&tracked.table.key, "q")),
            ("leases", leases),
        ],
    )
}

async fn parked_changes(
    connection: &mut Connection,
    watch: &Watch,
    limit: usize,
) -> Result<Vec<Parked>> {
    let backlog = Backlog::load(connection, watch).await?;
    let leases = leases_name(&watch.function_id, watch.table_id);
    let rows = send(connection, &parked_sql(&backlog.tracked, &leases, limit)?).await?;
    rows.iter()
        .map(|row| {
            let key = row.text(0)?;
            Ok(Parked {
                key: RawValue::from_string(key)
                    .map_err(|e| Error::new(Kind::Database, "a key is not JSON").caused_by(e))?,
                operation: RowOperation::from_number(row.take(1)?)?,
                version: row.take(2)?,
                attempts: row.take(3)?,
                error: row.maybe_text(4)?,
                since_ms: row.take(5)?,
            })
        })
        .collect()
}

fn stored(row: &Row) -> Result<Watch> {
    let (name, function_id) = (row.text(0)?, row.text(1)?);
    let table_id = i64::from(row.take::<i32>(2)?);
    let table = match (row.maybe::<&str>(3)?, row.maybe::<&str>(4)?) {
        (Some(schema), Some(name)) => TableName::qualified(schema, name),
        _ => TableName::unqualified("(dropped)"),
    };
    Ok(Watch {
        definition: watch_registry::definition(row.maybe(5)?, &name)?,
        name: WatchName::trusted(name),
        leases_table: format!("changefeed.{}", leases_name(&function_id, table_id)),
        function_id,
        table_id,
        table,
    })
}

/// How a watch is doing whose tables were deleted: `doctor` says so, and the others are looked at, too.
fn without_state(watch: &Watch) -> WatchStatus {
    WatchStatus {
        watch: watch.clone(),
        unprocessed: 0,
        leased: 0,
        parked: 0,
        last_error: Some(
            "its state was deleted; it is made again when the watch is started".to_owned(),
        ),
        last_sync_version: 0,
        idle_ms: None,
        suggested_workers: 0,
        parked_changes: Vec::new(),
    }
}
