//! Watches: which functions watch which tables.

mod loading;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{
    Batch, BatchOutcome, CHANGES_PER_WORKER, Finding, Fold, Kind, Parked, ParkedRows, Result,
    RowOperation, Settled, TableName, Take, Watch, WatchFrom, WatchName, WatchSettings, WatchSpec,
    WatchStatus, WatchStore, fill, suggested_workers, words,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::backlog::{Backlog, Look, NOW, Taken, Terms, functions};
use crate::error::Explain;
use crate::leases::note_time;
use crate::quote;
use crate::tracking::{self, Tracked, Wants, leases_name, log_name};
use crate::{SqliteStore, value};

#[async_trait]
impl WatchStore for SqliteStore {
    async fn open_watch(&self, spec: &WatchSpec) -> Result<Watch> {
        let spec = spec.clone();
        let watch = self.writing(move |tx| open(tx, &spec)).await?;
        self.load(&watch).await?;
        Ok(watch)
    }

    async fn watches(&self) -> Result<Vec<Watch>> {
        self.reading(|tx| {
            let mut statement = tx
                .prepare_cached(
                    "select name, function_id, table_id, definition from changefeed_watch \
                     order by name",
                )
                .explained()?;
            let mut rows = statement.query([]).explained()?;
            let mut watches = Vec::new();
            while let Some(row) = rows.next().explained()? {
                watches.push(stored(tx, row)?);
            }
            Ok(watches)
        })
        .await
    }

    async fn watch_status(&self, watch: &Watch, parked: usize) -> Result<WatchStatus> {
        let watch = watch.clone();
        self.reading(move |tx| status(tx, watch, parked)).await
    }

    async fn take(&self, watch: &Watch, take: Take<'_>) -> Result<Option<Batch>> {
        let asked = Instant::now();
        let (looking, owner) = (watch.clone(), take.owner.to_owned());
        let sound = self.sound(&watch.leases_table);
        let (found, schema) = self
            .reading(move |tx| {
                let schema = tracking::schema_version(tx)?;
                if sound != Some(schema) && !tracking::is_sound(tx, &looking)? {
                    return Ok((Look::Broken, schema));
                }
                Ok((Backlog::open(tx, &looking)?.look(&owner)?, schema))
            })
            .await?;
        if found != Look::Broken {
            self.set_sound(&watch.leases_table, schema);
        }
        let watch = watch.clone();
        match found {
            Look::Nothing => return Ok(None),
            Look::Time => {
                self.writing(move |tx| Backlog::open(tx, &watch)?.keep_state())
                    .await?;
                return Ok(None);
            }
            Look::Broken => {
                let watch = watch.clone();
                self.writing(move |tx| tracking::keep_up(tx, &watch))
                    .await?;
            }
            Look::Work => {}
        }
        let mut terms = Terms {
            owner: take.owner.to_owned(),
            settings: *take.settings,
            asked,
        };
        loop {
            let (watch, asking) = (watch.clone(), terms.clone());
            let taken = self
                .writing(move |tx| {
                    note_time(tx)?;
                    Backlog::open(tx, &watch)?.take(&asking)
                })
                .await?;
            match taken {
                Taken::Batch(batch) => return Ok(Some(batch)),
                Taken::Nothing => return Ok(None),
                Taken::MoreToMove => terms.asked = Instant::now(),
            }
        }
    }

    async fn held_batches(&self, watch: &Watch, owner: &str) -> Result<Vec<Batch>> {
        let (watch, owner) = (watch.clone(), owner.to_owned());
        self.reading(move |tx| Backlog::open(tx, &watch)?.held_by(&owner))
            .await
    }

    async fn renew(&self, watch: &Watch, batch: &Batch, lease: Duration) -> Result<u64> {
        let (watch, batch) = (watch.clone(), without_changes(batch));
        self.writing(move |tx| {
            note_time(tx)?;
            Backlog::open(tx, &watch)?.renew(&batch, lease)
        })
        .await
    }

    async fn settle(
        &self,
        watch: &Watch,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled> {
        let (watch, batch) = (watch.clone(), without_changes(batch));
        let (outcome, settings) = (outcome.clone(), *settings);
        self.writing(move |tx| {
            note_time(tx)?;
            Backlog::open(tx, &watch)?.settle(&batch, &outcome, &settings)
        })
        .await
    }

    async fn retry_parked(&self, watch: &Watch, which: ParkedRows) -> Result<u64> {
        let watch = watch.clone();
        self.writing(move |tx| {
            require(tx, &watch)?;
            tracking::ensure_state(tx)?;
            // Each row gets a version of its own: it is by its version that one is named.
            let sql = fill(
                include_str!("sql/watch_retry.sql"),
                &[("leases", &watch.leases_table)],
            )?;
            let count = tx.execute(&sql, [which.version()]).explained()?;
            tx.execute(
                "update changefeed_watch_counter set version = version + ?1",
                [count as i64],
            )
            .explained()?;
            Ok(count as u64)
        })
        .await
    }

    async fn reset_watch(&self, watch: &Watch, from: WatchFrom) -> Result<()> {
        let loaded = watch.clone();
        let watch = watch.clone();
        self.writing(move |tx| {
            tracking::keep_up(tx, &watch)?;
            let tracked = Tracked::load(tx, watch.table_id, &watch.name)?;
            tracked.ensure_leases(tx, &watch.leases_table)?;
            // What happened until now belongs to what is forgotten, but not for the others.
            Backlog::open(tx, &watch)?.shift(true)?;
            tx.execute(&format!("delete from {}", watch.leases_table), [])
                .explained()?;
            loading::forget(tx, &watch)?;
            match from {
                WatchFrom::Beginning => loading::begin(tx, &watch, &tracked),
                WatchFrom::Now => Ok(()),
            }
        })
        .await?;
        self.load(&loaded).await
    }

    async fn drop_watch(&self, watch: &Watch) -> Result<()> {
        let watch = watch.clone();
        self.writing(move |tx| drop(tx, &watch)).await
    }

    async fn watch_findings(&self) -> Result<Vec<Finding>> {
        let watches = self.watches().await?;
        self.reading(move |tx| {
            let found: Result<Vec<_>> = watches
                .iter()
                .map(|watch| tracking::findings(tx, watch))
                .collect();
            Ok(found?.into_iter().flatten().collect())
        })
        .await
    }
}

pub(crate) fn open(tx: &Connection, spec: &WatchSpec) -> Result<Watch> {
    let function_id = spec.name.function_id();
    let known: Option<(i64, Option<String>, bool, bool)> = tx
        .query_row(
            "select table_id, definition, columns, before from changefeed_watch where name = ?1",
            [spec.name.as_str()],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .optional()
        .explained()?;
    if known.is_none() && spec.existing {
        return Err(spec.name.unknown());
    }
    let definition = spec
        .definition
        .as_ref()
        .map(serde_json::to_string)
        .transpose()
        .map_err(|e| words::definition_unwritable().caused_by(e))?;
    let defined = known.as_ref().and_then(|(_, defined, ..)| defined.as_ref());
    if definition.is_some() && defined.is_some() && defined != definition.as_ref() && !spec.replace
    {
        return Err(spec.defined_already());
    }
    tracking::ensure_state(tx)?;
    // An instance that does not ask for columns leaves them to those that do.
    let (noted_columns, noted_before) = (known.as_ref())
        .filter(|_| definition.is_none())
        .map_or((false, false), |(_, _, columns, before)| {
            (*columns, *before)
        });
    let columns = spec.columns || noted_columns;
    let before = spec.notes_before() || noted_before;
    let wants = Wants {
        function_id: &function_id,
        columns,
        before,
    };
    let found = Tracked::ensure(tx, &spec.table, &wants);
    if let (Err(error), Some((table_id, ..))) = (&found, &known)
        && error.kind() == Kind::NotFound
    {
        // Says so, if that was dropped.
        Tracked::load(tx, *table_id, &spec.name)?;
    }
    let tracked = found?;
    let name = TableName::unqualified(&tracked.table.name);
    spec.filter
        .check_columns(&name, &tracked.table.columns, Fold::Keep)?;
    if let Some((table_id, ..)) = known
        && table_id != tracked.table_id
    {
        let other = Tracked::load(tx, table_id, &spec.name)
            .map_or_else(|_| "another table".to_owned(), |t| t.table.name);
        return Err(words::watch_elsewhere(&spec.name, other));
    }
    let leases = leases_name(&function_id, tracked.table_id);
    let watch = Watch {
        name: spec.name.clone(),
        function_id,
        table_id: tracked.table_id,
        table: TableName::unqualified(&tracked.table.name),
        leases_table: leases,
        definition: spec.definition.clone(),
    };
    let has_leases = functions(tx, tracked.table_id)?.contains(&watch.leases_table);
    if !has_leases {
        // What happened until now is for the functions that were there.
        drain(tx, &watch)?;
    }
    tracked.ensure_leases(tx, &watch.leases_table)?;
    if known.is_some() && !has_leases {
        tracing::warn!(
            watch = %watch.name, table = %watch.table,
            "the backlog of a watch was deleted, and is made again: the changes that waited in it are \
             lost; `changefeed watch reset --from beginning` hands over all rows"
        );
    }
    tx.execute(
        &quote::fill(include_str!("sql/watch_put.sql"), &[("now", NOW)])?,
        params![
            spec.name.as_str(),
            watch.function_id,
            watch.table_id,
            definition,
            columns,
            spec.max_changes_per_worker,
            before
        ],
    )
    .explained()?;
    let missing = tx.execute(
        &format!(
            "insert into changefeed_global_state (function_id, table_id, last_access_time) \
             values (?1, ?2, {NOW}) on conflict do nothing"
        ),
        params![watch.function_id, watch.table_id],
    );
    if missing.explained()? > 0 && known.is_some() && has_leases {
        tracing::warn!(watch = %watch.name, table = %watch.table, "{}", words::WATCH_STATE_EMPTIED);
    }
    if known.is_none() && spec.from == WatchFrom::Beginning {
        loading::begin(tx, &watch, &tracked)?;
    }
    view(tx, &watch, &tracked)?;
    Ok(watch)
}

pub(crate) fn drop(tx: &Connection, watch: &Watch) -> Result<()> {
    tracking::ensure_state(tx)?;
    let gone = tx
        .execute(
            "delete from changefeed_watch where name = ?1",
            [watch.name.as_str()],
        )
        .explained()?;
    if gone == 0 {
        return Err(watch.name.unknown());
    }
    tx.execute(
        "delete from changefeed_global_state where function_id = ?1",
        [&watch.function_id],
    )
    .explained()?;
    loading::forget(tx, watch)?;
    tx.execute_batch(&format!(
        "drop view if exists {}; drop table if exists {}",
        backlog_view(&watch.function_id),
        watch.leases_table
    ))
    .explained()?;
    let others: bool = tx
        .query_row(
            "select exists (select 1 from changefeed_watch where table_id = ?1)",
            [watch.table_id],
            |row| row.get(0),
        )
        .explained()?;
    if others {
        return Ok(());
    }
    tracking::remove(tx, watch.table_id)
}

/// Moves everything for the functions that are known already.
fn drain(tx: &Connection, watch: &Watch) -> Result<()> {
    let other: Option<(String, String)> = tx
        .query_row(
            "select name, function_id from changefeed_watch \
             where table_id = ?1 and function_id <> ?2 limit 1",
            params![watch.table_id, watch.function_id],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .explained()?;
    match other {
        Some((name, function_id)) => {
            let other = Watch {
                name: WatchName::trusted(name),
                function_id,
                ..watch.clone()
            };
            Backlog::open(tx, &other)?.shift(true).map(|_| ())
        }
        None => tx
            .execute_batch(&format!("delete from {}", log_name(watch.table_id)))
            .explained(),
    }
}

/// The one-row view for autoscalers.
fn view(tx: &Connection, watch: &Watch, tracked: &Tracked) -> Result<()> {
    let name = backlog_view(&watch.function_id);
    let sql = format!(
        "drop view if exists {name}; create view {name} as \
         select unprocessed, leased, parked, \
           (unprocessed + w.max_changes_per_worker - 1) / w.max_changes_per_worker \
             as suggested_workers \
         from changefeed_watch w join ({}) where w.function_id = {}",
        counts(
            tracked.table.key.len(),
            watch,
            &tracked.keys("q."),
            Noted::Somewhere
        ),
        quote::text(&watch.function_id)
    );
    tx.execute_batch(&sql).explained()
}

fn backlog_view(function_id: &str) -> String {
    format!("changefeed_backlog_{function_id}")
}

/// What a function still has to process, as a query. Counts what nobody has moved yet too.
fn counts(key: usize, watch: &Watch, own_key: &[String], noted: Noted) -> String {
    let keys = crate::capture::key_columns("l.", key);
    let same = crate::staging::pairs(own_key, "=", &keys, " and ");
    let leases = &watch.leases_table;
    let noted = match noted {
        Noted::Somewhere => format!(
            "(select count(*) from (select distinct {} from {} l \
              where not exists (select 1 from {leases} q \
                where {same} and q._changefeed_parked_time is null)))",
            keys.join(", "),
            log_name(watch.table_id)
        ),
        Noted::Nowhere => "0".to_owned(),
    };
    format!(
        "select (select count(*) from {leases} where _changefeed_parked_time is null) \
           + {noted} as unprocessed, \
         (select count(*) from {leases} where _changefeed_lease_expiration_time > {NOW}) as leased, \
         (select count(*) from {leases} where _changefeed_parked_time is not null) as parked"
    )
}

/// Whether there is a table with noted changes; somebody may have deleted it.
#[derive(Clone, Copy)]
enum Noted {
    Somewhere,
    Nowhere,
}

/// Refuses to work with a watch that is gone.
fn require(tx: &Connection, watch: &Watch) -> Result<()> {
    let there = functions(tx, watch.table_id)?.contains(&watch.leases_table);
    if there {
        return Ok(());
    }
    let known: bool = tx
        .query_row(
            "select exists (select 1 from changefeed_watch where name = ?1)",
            [watch.name.as_str()],
            |row| row.get(0),
        )
        .explained()?;
    if !known {
        return Err(watch.name.unknown());
    }
    Err(words::watch_state_deleted(watch))
}

fn parked(tx: &Connection, watch: &Watch, limit: usize) -> Result<Vec<Parked>> {
    require(tx, watch)?;
    let tracked = Tracked::load(tx, watch.table_id, &watch.name)?;
    let sql = format!(
        "select min(_changefeed_operation, 2), _changefeed_change_version, \
           _changefeed_attempt_count, _changefeed_last_error, {NOW} - _changefeed_parked_time, {} \
         from {} where _changefeed_parked_time is not null \
         order by _changefeed_change_version limit {limit}",
        tracked.keys("").join(", "),
        watch.leases_table
    );
    let mut statement = tx.prepare(&sql).explained()?;
    let mut rows = statement.query([]).explained()?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().explained()? {
        found.push(Parked {
            key: value::to_json(row, &tracked.table.key, 5)?,
            operation: RowOperation::from_number(row.get(0).explained()?)?,
            version: row.get(1).explained()?,
            attempts: row.get(2).explained()?,
            error: row.get(3).explained()?,
            since_ms: row.get(4).explained()?,
        });
    }
    Ok(found)
}

fn stored(tx: &Connection, row: &Row<'_>) -> Result<Watch> {
    let (name, function_id, table_id): (String, String, i64) = (
        row.get(0).explained()?,
        row.get(1).explained()?,
        row.get(2).explained()?,
    );
    let definition = row
        .get::<_, Option<String>>(3)
        .explained()?
        .map(|text| serde_json::from_str(&text))
        .transpose()
        .map_err(|e| words::definition_unreadable(format_args!("watch '{name}'")).caused_by(e))?;
    let name = WatchName::trusted(name);
    let table = match Tracked::load(tx, table_id, &name) {
        Ok(tracked) => tracked.table.name,
        Err(_) => "(dropped)".to_owned(),
    };
    Ok(Watch {
        leases_table: leases_name(&function_id, table_id),
        table: TableName::unqualified(table),
        name,
        function_id,
        table_id,
        definition,
    })
}

fn status(tx: &Connection, watch: Watch, limit: usize) -> Result<WatchStatus> {
    let known: bool = tx
        .query_row(
            "select exists (select 1 from changefeed_watch where name = ?1)",
            [watch.name.as_str()],
            |row| row.get(0),
        )
        .explained()?;
    if !known {
        return Err(watch.name.unknown());
    }
    let state: Option<(i64, i64)> = if tracking::exists(tx, "changefeed_global_state")? {
        tx.query_row(
            &format!(
                "select last_sync_version, {NOW} - last_access_time \
                 from changefeed_global_state where function_id = ?1 and table_id = ?2"
            ),
            params![watch.function_id, watch.table_id],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .explained()?
    } else {
        None
    };
    let mut status = WatchStatus {
        watch,
        unprocessed: 0,
        leased: 0,
        parked: 0,
        last_error: None,
        last_sync_version: state.map_or(0, |(version, _)| version),
        idle_ms: state.map(|(_, idle)| idle),
        suggested_workers: 0,
        parked_changes: Vec::new(),
    };
    let watch = &status.watch;
    let Ok(tracked) = Tracked::load(tx, watch.table_id, &watch.name) else {
        return Ok(status);
    };
    if !functions(tx, watch.table_id)?.contains(&watch.leases_table) {
        return Ok(status);
    }
    let noted = match tracking::exists(tx, &tracked.log())? {
        true => Noted::Somewhere,
        false => Noted::Nowhere,
    };
    let counts = counts(tracked.table.key.len(), watch, &tracked.keys("q."), noted);
    (status.unprocessed, status.leased, status.parked) = tx
        .query_row(&counts, [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .explained()?;
    status.last_error = tx
        .query_row(
            &format!(
                "select _changefeed_last_error from {} where _changefeed_last_error is not null \
                 order by _changefeed_change_version desc limit 1",
                watch.leases_table
            ),
            [],
            |row| row.get(0),
        )
        .optional()
        .explained()?;
    let per_worker = tx
        .query_row(
            "select max_changes_per_worker from changefeed_watch where name = ?1",
            [watch.name.as_str()],
            |row| row.get(0),
        )
        .optional()
        .explained()?;
    status.suggested_workers =
        suggested_workers(status.unprocessed, per_worker.unwrap_or(CHANGES_PER_WORKER));
    status.parked_changes = parked(tx, watch, limit)?;
    Ok(status)
}

/// What is needed of a batch to settle it.
fn without_changes(batch: &Batch) -> Batch {
    batch.part(batch.part.clone())
}
