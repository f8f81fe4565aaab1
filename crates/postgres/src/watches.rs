//! Watches: which functions watch which tables.

mod loading;
mod parked;

use std::time::{Duration, Instant};

use changefeed_core::{
    Batch, BatchOutcome, Error, Finding, Fold, Kind, ParkedRows, Result, Settled, TableName, Take,
    Watch, WatchFrom, WatchName, WatchSettings, WatchSpec, WatchStatus, words,
};
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use crate::backlog::Backlog;
use crate::error::{db, is_undefined};
use crate::patience::{Patience, in_use};
use crate::row::Cells;
use crate::session::Session;
use crate::template::fill;
use crate::tracking::{Tracked, begin, exists, leases_name, lock_table};
use crate::watch_before::Before;
use crate::watch_columns::Columns;
use crate::{quote, watch_findings, watch_rights};

impl Session {
    pub(crate) async fn open_watch(&mut self, spec: &WatchSpec) -> Result<Watch> {
        let client = &mut **self;
        let transaction = begin(client).await?;
        Patience::Person.set(&*transaction).await?;
        let opened = open(&*transaction, spec).await?;
        transaction.commit().await.map_err(db)?;
        self.opened(&opened).await?;
        Ok(opened.watch)
    }

    pub(crate) async fn watches(&mut self) -> Result<Vec<Watch>> {
        let client = &mut **self;
        let transaction = begin(client).await?;
        let rows = transaction
            .query(include_str!("sql/watches.sql"), &[])
            .await
            .map_err(db)?;
        rows.iter().map(stored).collect()
    }

    pub(crate) async fn watch_status(
        &mut self,
        watch: &Watch,
        parked: usize,
    ) -> Result<WatchStatus> {
        let client = &mut **self;
        let transaction = begin(client).await?;
        let row = transaction
            .query_opt(
                include_str!("sql/watch_status.sql"),
                &[&watch.name.as_str()],
            )
            .await
            .map_err(db)?
            .ok_or_else(|| watch.name.unknown())?;
        transaction.commit().await.map_err(db)?;
        let (unprocessed, given_up): (i64, i64) = (row.take(0)?, row.take(2)?);
        let parked_changes = match given_up {
            0 => Vec::new(),
            _ => self.parked(watch, parked).await?,
        };
        Ok(WatchStatus {
            watch: watch.clone(),
            unprocessed,
            leased: row.take(1)?,
            parked: given_up,
            last_error: row.take(3)?,
            last_sync_version: row.take(4)?,
            idle_ms: row.take(5)?,
            suggested_workers: row.take(6)?,
            parked_changes,
        })
    }

    pub(crate) async fn take(&mut self, watch: &Watch, take: Take<'_>) -> Result<Option<Batch>> {
        let mut again = true;
        loop {
            let taken = self
                .with_backlog(watch, async |client, backlog| {
                    Ok((backlog.take(client, take).await?, backlog.is_stale()))
                })
                .await;
            match taken {
                Ok((taken, stale)) => {
                    if stale {
                        self.known.backlogs.forget(&watch.leases_table);
                    }
                    if taken.is_some() || !stale {
                        return Ok(taken);
                    }
                }
                // Tables were renamed, functions came or went: what is known of them is read anew.
                Err(error) if error.kind() == Kind::NotFound && again => again = false,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn held_batches(&mut self, watch: &Watch, owner: &str) -> Result<Vec<Batch>> {
        self.with_backlog(watch, async |client, backlog| {
            backlog.held_by(client, owner).await
        })
        .await
    }

    pub(crate) async fn renew(
        &mut self,
        watch: &Watch,
        batch: &Batch,
        lease: std::time::Duration,
    ) -> Result<u64> {
        self.with_backlog(watch, async |client, backlog| {
            backlog.renew(client, batch, lease).await
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
        self.with_backlog(watch, async |client, backlog| {
            backlog.settle(client, batch, outcome, settings).await
        })
        .await
    }

    pub(crate) async fn retry_parked(&mut self, watch: &Watch, which: ParkedRows) -> Result<u64> {
        let client = &mut **self;
        let transaction = begin(client).await?;
        Patience::Person.set(&*transaction).await?;
        lock_table(&*transaction, watch.table_id).await?;
        let sql = format!(
            "update {} set _changefeed_parked_time = null, _changefeed_attempt_count = 0, \
               _changefeed_change_version = nextval('changefeed.change_version') \
             where _changefeed_parked_time is not null \
               and ($1::pg_catalog.int8 is null or _changefeed_change_version = $1)",
            watch.leases_table
        );
        let count = transaction
            .execute(&sql, &[&which.version()])
            .await
            .map_err(|e| missing_state(e, watch))?;
        transaction.commit().await.map_err(db)?;
        Ok(count)
    }

    pub(crate) async fn reset_watch(&mut self, watch: &Watch, from: WatchFrom) -> Result<()> {
        let client = &mut **self;
        let transaction = begin(client).await?;
        Patience::Person.set(&*transaction).await?;
        lock_table(&*transaction, watch.table_id).await?;
        let tracked = Tracked::load(&*transaction, watch.table_id, &watch.name).await?;
        let leases = leases_name(&watch.function_id, watch.table_id);
        tracked.ensure_leases(&*transaction, &leases).await?;
        // What happened until now belongs to what is forgotten, but not for the other functions.
        let backlog = Backlog::load(&*transaction, watch).await?;
        backlog.move_all(&*transaction).await?;
        transaction
            .batch_execute(&format!("delete from changefeed.{leases}"))
            .await
            .map_err(db)?;
        transaction
            .execute(
                "update changefeed.watch set loading = $2, loaded_to = null where name = $1",
                &[&watch.name.as_str(), &(from == WatchFrom::Beginning)],
            )
            .await
            .map_err(db)?;
        transaction.commit().await.map_err(db)?;
        self.known.backlogs.forget(&watch.leases_table);
        self.load(watch, &tracked, &leases).await
    }

    pub(crate) async fn drop_watch(&mut self, watch: &Watch) -> Result<()> {
        // Readers of its rows and its backlog lock them in another order. In a deadlock the server may
        // choose us. A lock timeout takes longer than this, and is not tried again.
        let again_until = Instant::now() + Duration::from_secs(4);
        loop {
            match self.try_drop(watch).await {
                Err(error) if error.kind() == Kind::Busy && Instant::now() < again_until => {}
                ended => return ended,
            }
        }
    }

    pub(crate) async fn watch_findings(&mut self) -> Result<Vec<Finding>> {
        let watches = self.watches().await?;
        let client = &mut **self;
        let transaction = begin(client).await?;
        let mut findings = Vec::new();
        for watch in &watches {
            findings.extend(watch_findings::find(&*transaction, watch).await?);
        }
        Ok(findings)
    }
}

/// A watch that was opened, and what else is known of it.
pub(crate) struct Opened {
    pub(crate) watch: Watch,
    tracked: Tracked,
    leases: String,
}

/// Opens a watch, in a transaction of [`begin`].
pub(crate) async fn open(client: &impl GenericClient, spec: &WatchSpec) -> Result<Opened> {
    let function_id = spec.name.function_id();
    let known = client
        .query_opt(
            "select w.table_id, t.source::oid, w.columns, w.before from changefeed.watch w \
             join changefeed.watched_table t on t.table_id = w.table_id where w.name = $1",
            &[&spec.name.as_str()],
        )
        .await
        .map_err(db)?;
    let found = Tracked::find(client, &spec.table).await;
    if let (Err(error), Some(row)) = (&found, &known)
        && error.kind() == Kind::NotFound
    {
        return Err(elsewhere(client, &spec.name, row.take(1)?).await?);
    }
    let mut tracked = found?;
    let columns: Vec<&str> = tracked
        .table
        .columns
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    spec.filter
        .check_columns(&tracked.table.name, &columns, Fold::Lower)?;
    if let Some(row) = &known {
        let (table_id, source): (i64, u32) = (row.take(0)?, row.take(1)?);
        if source != tracked.table.oid {
            return Err(elsewhere(client, &spec.name, source).await?);
        }
        tracked.table_id = table_id;
    }
    watch_rights::check(client, tracked.table_id).await?;
    lock_table(client, tracked.table_id).await?;
    // An instance that does not ask for columns leaves them to those that do.
    let noted = |place: usize| {
        let known = known.as_ref();
        known.map_or(Ok(false), |row| row.take::<bool>(place))
    };
    let columns = spec.columns || spec.definition.is_none() && noted(2)?;
    let before = spec.notes_before() || spec.definition.is_none() && noted(3)?;
    let others = client
        .query_one(
            "select coalesce(bool_or(w.columns), false), coalesce(bool_or(w.before), false) \
             from changefeed.watch w where w.table_id = $1 and w.function_id <> $2",
            &[&tracked.table_id, &function_id],
        )
        .await
        .map_err(db)?;
    tracked.columns = Columns::new(columns || others.take(0)?);
    tracked.before = Before::new(before || others.take(1)?);
    tracked
        .ensure(client)
        .await
        .map_err(|e| in_use(e, &tracked.table.name))?;
    let leases = leases_name(&function_id, tracked.table_id);
    let watch = Watch {
        name: spec.name.clone(),
        function_id,
        table_id: tracked.table_id,
        table: tracked.table.name.clone(),
        leases_table: format!("changefeed.{leases}"),
        definition: spec.definition.clone(),
    };
    register(client, spec, &watch, &tracked, (columns, before)).await?;
    Ok(Opened {
        watch,
        tracked,
        leases,
    })
}

/// Removes a watch, in a transaction of [`begin`].
pub(crate) async fn drop(client: &impl GenericClient, watch: &Watch) -> Result<()> {
    lock_table(client, watch.table_id).await?;
    let gone = client
        .execute(
            "delete from changefeed.watch where name = $1",
            &[&watch.name.as_str()],
        )
        .await
        .map_err(db)?;
    if gone == 0 {
        return Err(watch.name.unknown());
    }
    client
        .batch_execute(&format!(
            "drop table if exists {}; drop view if exists changefeed.{}; \
             delete from changefeed.global_state where function_id = {};",
            watch.leases_table,
            backlog_view(&watch.function_id),
            quote::literal(&watch.function_id)
        ))
        .await
        .map_err(db)?;
    let others: bool = client
        .query_one(
            "update changefeed.watched_table t set generation = generation + 1 \
             where t.table_id = $1 \
             returning exists (select from changefeed.watch w where w.table_id = t.table_id)",
            &[&watch.table_id],
        )
        .await
        .map_err(db)?
        .take(0)?;
    if !others {
        Tracked::remove(client, watch.table_id)
            .await
            .map_err(|e| in_use(e, &watch.table))?;
    }
    Ok(())
}

impl Session {
    pub(crate) async fn try_drop(&mut self, watch: &Watch) -> Result<()> {
        let client = &mut **self;
        let transaction = begin(client).await?;
        Patience::Person.set(&*transaction).await?;
        drop(&*transaction, watch).await?;
        transaction.commit().await.map_err(db)?;
        self.known.backlogs.forget(&watch.leases_table);
        Ok(())
    }

    /// What follows when the transaction that opened a watch is committed.
    pub(crate) async fn opened(&mut self, opened: &Opened) -> Result<()> {
        let Opened {
            watch,
            tracked,
            leases,
        } = opened;
        self.known.backlogs.forget(&watch.leases_table);
        self.load(watch, tracked, leases).await
    }
}

/// Registers a function, if it is new, and makes its tables, if they are missing. The table's lock
/// is held.
async fn register(
    client: &impl GenericClient,
    spec: &WatchSpec,
    watch: &Watch,
    tracked: &Tracked,
    (columns, before): (bool, bool),
) -> Result<()> {
    let definition = spec
        .definition
        .as_ref()
        .map(serde_json::to_string)
        .transpose()
        .map_err(|e| words::definition_unwritable().caused_by(e))?;
    let per_worker = spec.max_changes_per_worker.map(i64::from);
    let known = client
        .query_opt(
            "select coalesce(definition <> $2::text::jsonb, false), name::text, \
               (definition, columns, before, max_changes_per_worker) \
                 is distinct from (coalesce($2::text::jsonb, definition), $3, $5, \
                                   coalesce($4::bigint, max_changes_per_worker)) \
             from changefeed.watch where function_id = $1",
            &[
                &watch.function_id,
                &definition,
                &columns,
                &per_worker,
                &before,
            ],
        )
        .await
        .map_err(db)?;
    if known.is_none() && spec.existing {
        return Err(spec.name.unknown());
    }
    if let Some(row) = &known {
        let (differs, name): (bool, String) = (row.take(0)?, row.take(1)?);
        if name != spec.name.as_str() {
            return Err(words::watch_id_taken(&spec.name, &name));
        }
        if differs && !spec.replace {
            return Err(spec.defined_already());
        }
    }
    // Workers may not write to definitions.
    let changes = known.as_ref().map_or(Ok(false), |row| row.take(2))?;
    let known = known.is_some();
    let leases = &leases_name(&watch.function_id, watch.table_id);
    let has_leases = exists(client, leases).await?;
    if !has_leases {
        // What happened until now is for the functions that were there.
        drain(client, watch).await?;
    }
    tracked.ensure_leases(client, leases).await?;
    if known && !has_leases {
        tracing::warn!(
            watch = %watch.name, table = %watch.table,
            "the backlog of a watch was deleted, and is made again: the changes that waited in it are \
             lost; `changefeed watch reset --from beginning` hands over all rows"
        );
    }
    if !known {
        client
            .execute(
                "insert into changefeed.watch \
                   (name, function_id, table_id, definition, loading, columns, \
                    max_changes_per_worker, before) \
                 values ($1, $2, $3, $4::text::jsonb, $5, $6, coalesce($7::bigint, 1000), $8)",
                &[
                    &spec.name.as_str(),
                    &watch.function_id,
                    &watch.table_id,
                    &definition,
                    &(spec.from == WatchFrom::Beginning),
                    &columns,
                    &per_worker,
                    &before,
                ],
            )
            .await
            .map_err(db)?;
    } else if changes {
        client
            .execute(
                "update changefeed.watch \
                 set definition = coalesce($2::text::jsonb, definition), columns = $3, before = $5, \
                   max_changes_per_worker = coalesce($4::bigint, max_changes_per_worker) \
                 where name = $1",
                &[
                    &spec.name.as_str(),
                    &definition,
                    &columns,
                    &per_worker,
                    &before,
                ],
            )
            .await
            .map_err(db)?;
    }
    if !known || !has_leases {
        client
            .execute(
                "update changefeed.watched_table set generation = generation + 1 \
                 where table_id = $1",
                &[&watch.table_id],
            )
            .await
            .map_err(db)?;
    }
    if !exists(client, "global_state").await? {
        client
            .batch_execute(include_str!("sql/watch_global_state.sql"))
            .await
            .map_err(db)?;
    }
    let missing = client
        .execute(
            "insert into changefeed.global_state (function_id, table_id) values ($1, $2) \
             on conflict do nothing",
            &[&watch.function_id, &watch.table_id],
        )
        .await
        .map_err(db)?;
    if known && has_leases && missing > 0 {
        tracing::warn!(watch = %watch.name, table = %watch.table, "{}", words::WATCH_STATE_EMPTIED);
    }
    if exists(client, &backlog_view(&watch.function_id)).await? {
        return Ok(());
    }
    let view = backlog_view(&watch.function_id);
    let sql = fill(
        include_str!("sql/watch_view.sql"),
        &[
            ("view", &view),
            ("function_id", &quote::literal(&watch.function_id)),
            ("name", &quote::literal(&view)),
        ],
    )?;
    client.batch_execute(&sql).await.map_err(db)
}

/// Moves everything for the functions that are known already.
async fn drain(client: &impl GenericClient, watch: &Watch) -> Result<()> {
    let others = client
        .query(
            "select w.name::text, w.function_id from changefeed.watch w \
             where w.table_id = $1 and w.function_id <> $2 \
               and to_regclass(format('changefeed.leases_%s_%s', w.function_id, w.table_id)) \
                   is not null limit 1",
            &[&watch.table_id, &watch.function_id],
        )
        .await
        .map_err(db)?;
    let Some(row) = others.first() else {
        let forget = format!("delete from changefeed.changes_{}", watch.table_id);
        return client.batch_execute(&forget).await.map_err(db);
    };
    let other = Watch {
        name: WatchName::trusted(row.take(0)?),
        function_id: row.take(1)?,
        ..watch.clone()
    };
    Backlog::load(client, &other).await?.move_all(client).await
}

/// The one-row view for autoscalers.
fn backlog_view(function_id: &str) -> String {
    format!("backlog_{function_id}")
}

fn stored(row: &tokio_postgres::Row) -> Result<Watch> {
    let (name, function_id, table_id): (String, String, i64) =
        (row.take(0)?, row.take(1)?, row.take(2)?);
    let table = match (
        row.take::<Option<String>>(3)?,
        row.take::<Option<String>>(4)?,
    ) {
        (Some(schema), Some(name)) => TableName::qualified(schema, name),
        _ => TableName::unqualified("(dropped)"),
    };
    let definition = row
        .take::<Option<String>>(5)?
        .map(|text| serde_json::from_str(&text))
        .transpose()
        .map_err(|e| words::definition_unreadable(format_args!("watch '{name}'")).caused_by(e))?;
    Ok(Watch {
        name: WatchName::trusted(name),
        leases_table: format!("changefeed.{}", leases_name(&function_id, table_id)),
        function_id,
        table_id,
        table,
        definition,
    })
}

/// A key as JSON. In a database with the encoding SQL_ASCII its bytes may be no text.
fn raw(text: &[u8]) -> Result<Box<RawValue>> {
    RawValue::from_string(String::from_utf8_lossy(text).into_owned())
        .map_err(|e| Error::new(Kind::Database, "a key is not JSON").caused_by(e))
}

/// The error for a function that watches another table already.
async fn elsewhere(client: &impl GenericClient, name: &WatchName, oid: u32) -> Result<Error> {
    let row = client
        .query_opt(
            "select c.oid::regclass::text from pg_class c where c.oid = $1",
            &[&oid],
        )
        .await
        .map_err(db)?;
    let Some(row) = row else {
        return Ok(words::watch_table_dropped(name));
    };
    Ok(words::watch_elsewhere(name, row.take::<String>(0)?))
}

fn missing_state(error: tokio_postgres::Error, watch: &Watch) -> Error {
    if is_undefined(&error) {
        return words::watch_state_deleted(watch);
    }
    db(error)
}
