//! The backlog of a function: moving changes there, leasing, settling. All of it happens within
//! one transaction of the one writer.

mod settling;

use std::time::{Duration, Instant};

use changefeed_core::{
    Batch, Error, Images, Result, RowChange, RowOperation, Watch, WatchSettings, crash_point, words,
};
use rusqlite::{Connection, params};

use crate::error::Explain;
use crate::quote::fill;
use crate::tracking::{Tracked, leases_name};
use crate::{read, value};

/// Changes that are moved at a time.
const CHUNK: i64 = 10_000;

/// Milliseconds since 1970, by the clock that all processes of a file share.
pub(crate) const NOW: &str = "cast((julianday('now') - 2440587.5) * 86400000.0 as integer)";

/// How often an instance that has nothing to do says that it is there, in milliseconds.
const IDLE: i64 = 5000;

/// How much is read at once at most, as JSON; what is more is given back.
const BYTES_AT_ONCE: usize = 16 * 1024 * 1024;

/// What an instance finds when it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    Work,
    /// It is time to say that somebody is at work.
    Time,
    /// Triggers or tables of ours are not what they were.
    Broken,
}

/// What came of asking for a batch.
pub(crate) enum Taken {
    Nothing,
    Batch(Batch),
    /// A large backlog is moved before anything of it is leased: what comes last decides the order
    /// and the net change of a row. In several transactions, so that writers do not wait.
    MoreToMove,
}

/// Who asks for a batch, and on which terms.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) owner: String,
    pub(crate) settings: WatchSettings,
    pub(crate) asked: Instant,
}

/// A function's backlog, in a transaction.
pub(crate) struct Backlog<'a> {
    tx: &'a Connection,
    tracked: Tracked,
    leases: String,
    watch: &'a Watch,
    now: i64,
}

impl<'a> Backlog<'a> {
    pub(crate) fn open(tx: &'a Connection, watch: &'a Watch) -> Result<Self> {
        let known: bool = tx
            .prepare_cached("select exists (select 1 from changefeed_watch where function_id = ?1)")
            .and_then(|mut s| s.query_row([&watch.function_id], |row| row.get(0)))
            .explained()?;
        if !known {
            return Err(watch.name.unknown());
        }
        let tracked = Tracked::load(tx, watch.table_id, &watch.name)?;
        let now = tx
            .prepare_cached(&format!("select {NOW}"))
            .and_then(|mut s| s.query_row([], |row| row.get(0)))
            .explained()?;
        Ok(Backlog {
            tx,
            tracked,
            leases: leases_name(&watch.function_id, watch.table_id),
            watch,
            now,
        })
    }

    /// Fills a statement about this backlog.
    fn sql(&self, template: &str, more: &[(&str, &str)]) -> Result<String> {
        let log = self.tracked.log();
        let mut places = vec![("leases", self.leases.as_str()), ("log", log.as_str())];
        places.extend_from_slice(more);
        fill(template, &places)
    }

    fn due() -> Result<String> {
        fill(include_str!("sql/watch_due.sql"), &[])
    }

    /// Whether there is anything to do.
    pub(crate) fn look(&self, owner: &str) -> Result<Look> {
        let sql = self.sql(
            include_str!("sql/watch_look.sql"),
            &[("due", &Backlog::due()?), ("idle", &IDLE.to_string())],
        );
        let (function_id, table_id) = (&self.watch.function_id, self.watch.table_id);
        self.tx
            .prepare_cached(&sql?)
            .and_then(|mut s| {
                s.query_row(params![self.now, owner, function_id, table_id], |row| {
                    if row.get::<_, bool>(0)? || row.get(1)? || row.get(2)? {
                        return Ok(Look::Work);
                    }
                    Ok(match row.get(3)? {
                        true => Look::Time,
                        false => Look::Nothing,
                    })
                })
            })
            .map_err(|e| self.missing(e))
    }

    fn missing(&self, error: rusqlite::Error) -> Error {
        let there = self
            .tx
            .prepare_cached("select exists (select 1 from sqlite_master where name = ?1)")
            .and_then(|mut s| s.query_row([&self.leases], |row| row.get::<_, bool>(0)));
        match there {
            Ok(false) => words::watch_state_deleted(self.watch),
            _ => crate::error::explain(error),
        }
    }

    fn next_version(&self, count: i64) -> Result<i64> {
        self.tx
            .prepare_cached(
                "update changefeed_watch_counter set version = version + ?1 returning version",
            )
            .and_then(|mut s| s.query_row([count], |row| row.get(0)))
            .explained()
    }

    fn next_generation(&self) -> Result<i64> {
        self.tx
            .prepare_cached(
                "update changefeed_watch_counter set generation = generation + 1 \
                 returning generation",
            )
            .and_then(|mut s| s.query_row([], |row| row.get(0)))
            .explained()
    }

    /// Moves changes to the backlogs of all functions that watch the table; all of them, or up to
    /// a chunk. Returns whether there may be more.
    pub(crate) fn shift(&self, all: bool) -> Result<bool> {
        let log = self.tracked.log();
        let bound: Option<i64> = if all {
            Some(i64::MAX)
        } else {
            self.tx
                .prepare_cached(&format!(
                    "select max(seq) from (select seq from {log} order by seq limit {CHUNK})"
                ))
                .and_then(|mut s| s.query_row([], |row| row.get(0)))
                .explained()?
        };
        let Some(bound) = bound else {
            return Ok(false);
        };
        // As many versions as there are changes are enough: gaps do no harm.
        let number: i64 = self
            .tx
            .prepare_cached(&format!("select count(*) from {log} where seq <= ?1"))
            .and_then(|mut s| s.query_row([bound], |row| row.get(0)))
            .explained()?;
        if number == 0 {
            return Ok(false);
        }
        let before = self.next_version(number)? - number;
        for leases in functions(self.tx, self.watch.table_id)? {
            self.tx
                .prepare_cached(&self.fold(&leases)?)
                .and_then(|mut s| s.execute([bound, before]))
                .explained()?;
        }
        self.tx
            .prepare_cached(&format!("delete from {log} where seq <= ?1"))
            .and_then(|mut s| s.execute([bound]))
            .explained()?;
        Ok(!all && number >= CHUNK)
    }

    /// What moves net changes to a backlog.
    fn fold(&self, leases: &str) -> Result<String> {
        let log_keys = crate::capture::key_columns("", self.tracked.table.key.len()).join(", ");
        let own = "q._changefeed_columns";
        let newer = "q._changefeed_newer_columns";
        let excluded = "excluded._changefeed_columns";
        let own_before = "q._changefeed_before";
        let newer_before = "q._changefeed_newer_before";
        let excluded_before = "excluded._changefeed_before";
        fill(
            include_str!("sql/watch_fold.sql"),
            &[
                ("leases", leases),
                ("log", &self.tracked.log()),
                ("keys", &self.tracked.keys("").join(", ")),
                ("log_keys", &log_keys),
                (
                    "all_columns",
                    match self.tracked.columns {
                        // All of them, or nothing: then any column may have changed.
                        true => {
                            "case when count(columns) = count(*) \
                             then '[' || group_concat(columns) || ']' end"
                        }
                        false => "null",
                    },
                ),
                ("net_columns", &self.united("columns")),
                (
                    "all_before",
                    match self.tracked.before {
                        true => {
                            "case when count(before) = count(*) \
                             then '[' || group_concat(before, ',' order by seq) || ']' end"
                        }
                        false => "null",
                    },
                ),
                ("net_before", &self.few("before")),
                (
                    "newer_and_excluded_before",
                    &self.joined(&[newer_before, excluded_before]),
                ),
                (
                    "own_and_excluded_before",
                    &self.joined(&[own_before, excluded_before]),
                ),
                (
                    "all_three_before",
                    &self.joined(&[own_before, newer_before, excluded_before]),
                ),
                (
                    "newer_and_excluded",
                    &self.united(&list(&[newer, excluded])),
                ),
                ("own_and_excluded", &self.united(&list(&[own, excluded]))),
                ("all_three", &self.united(&list(&[own, newer, excluded]))),
            ],
        )
    }

    /// A JSON array of arrays of columns as one array, each column once; null stays null.
    fn united(&self, arrays: &str) -> String {
        if !self.tracked.columns {
            return "null".to_owned();
        }
        format!(
            "case when {arrays} is not null then (select json_group_array(c.value) from \
             (select distinct i.value as value from json_each({arrays}) o, json_each(o.value) i) c) end"
        )
    }

    /// JSON arrays of rows as they were, one after the other; null if one of them is.
    fn joined(&self, arrays: &[&str]) -> String {
        let inner = |array: &&str| format!("substr({array}, 2, length({array}) - 2)");
        let inner: Vec<String> = arrays.iter().map(inner).collect();
        self.few(&format!("('[' || {} || ']')", inner.join(" || ',' || ")))
    }

    /// Of very many rows only the first, and that there were more.
    fn few(&self, array: &str) -> String {
        if !self.tracked.before {
            return "null".to_owned();
        }
        format!(
            "case when json_array_length({array}) > {} \
             then '[' || ({array} -> '$[0]') || ',true]' else {array} end",
            Images::KEPT
        )
    }

    /// Leases the next batch and reads its rows.
    pub(crate) fn take(&self, terms: &Terms) -> Result<Taken> {
        self.keep_state()?;
        self.give_up_unreported(terms.settings.attempts)?;
        let again = self.lease_again(terms)?;
        let leased = match again {
            Some(leased) => Some(leased),
            None => {
                if self.shift(false)? {
                    return Ok(Taken::MoreToMove);
                }
                let free = "q._changefeed_parked_time is null \
                    and q._changefeed_lease_generation is null \
                    and q._changefeed_retry_time is null and ?2 is not null";
                self.lease(terms, free, terms.settings.batch)?
            }
        };
        let Some(leased) = leased else {
            return Ok(Taken::Nothing);
        };
        crash_point("watch.leased");
        self.rows(leased, terms.asked).map(Taken::Batch)
    }

    /// Parks rows whose last attempt was cut off.
    fn give_up_unreported(&self, attempts: u32) -> Result<()> {
        let condition = format!(
            "q._changefeed_parked_time is null \
             and (q._changefeed_lease_generation is not null \
                  or q._changefeed_retry_time is not null) \
             and q._changefeed_lease_expiration_time < ?1 \
             and q._changefeed_attempt_count >= {attempts}"
        );
        self.give_up(&condition, None).map(drop)
    }

    fn give_up(&self, condition: &str, error: Option<&str>) -> Result<u64> {
        let sql = self.sql(
            include_str!("sql/watch_give_up.sql"),
            &[
                ("condition", condition),
                ("unleased", include_str!("sql/watch_unleased.sql")),
                (
                    "own_and_newer",
                    &self.united(&list(&[
                        "q._changefeed_columns",
                        "q._changefeed_newer_columns",
                    ])),
                ),
                (
                    "own_and_newer_before",
                    &self.joined(&["q._changefeed_before", "q._changefeed_newer_before"]),
                ),
            ],
        );
        let version = self.next_version(1)?;
        let count = self
            .tx
            .prepare_cached(&sql?)
            .and_then(|mut s| s.execute(params![self.now, error, version]))
            .map_err(|e| self.missing(e))?;
        Ok(count as u64)
    }

    /// Rows that have to be tried again. All of a batch have been tried as often, and the more
    /// often that was, the fewer they are.
    fn lease_again(&self, terms: &Terms) -> Result<Option<Leased>> {
        use rusqlite::OptionalExtension;
        let due = Backlog::due()?;
        let sql = format!(
            "select q._changefeed_attempt_count from {} q where {due} \
             order by q._changefeed_change_version limit 1",
            self.leases
        );
        let tried: Option<u32> = self
            .tx
            .prepare_cached(&sql)
            .and_then(|mut s| {
                s.query_row(params![self.now, terms.owner], |row| row.get(0))
                    .optional()
            })
            .explained()?;
        let Some(tried) = tried else { return Ok(None) };
        let condition = format!("{due} and q._changefeed_attempt_count = {tried}");
        self.lease(terms, &condition, terms.settings.group(tried + 1))
    }

    fn lease(&self, terms: &Terms, condition: &str, limit: usize) -> Result<Option<Leased>> {
        let sql = self.sql(
            include_str!("sql/watch_lease.sql"),
            &[("condition", condition), ("rowid", self.tracked.rowid())],
        );
        let generation = self.next_generation()?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows: Vec<(i64, u32)> = self
            .tx
            .prepare_cached(&sql?)
            .and_then(|mut s| {
                s.query_map(
                    params![
                        self.now,
                        terms.owner,
                        millis(terms.settings.lease),
                        generation,
                        limit
                    ],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )?
                .collect()
            })
            .explained()?;
        let versions = rows.iter().map(|(version, _)| *version);
        let (Some(low), Some(high)) = (versions.clone().min(), versions.max()) else {
            return Ok(None);
        };
        Ok(Some(Leased {
            generation,
            versions: (low, high),
            attempt: rows.iter().map(|(_, attempt)| *attempt).max().unwrap_or(1),
        }))
    }

    fn rows(&self, leased: Leased, asked: Instant) -> Result<Batch> {
        let table = &self.tracked.table;
        let own_key = self.tracked.keys("q.");
        let row_key = self.tracked.keys("changefeed_row.");
        let gone = format!(
            "({} is null or q._changefeed_operation >= 2)",
            row_key.first().map_or("null", String::as_str)
        );
        let sql = self.sql(
            include_str!("sql/watch_rows.sql"),
            &[
                ("gone", &gone),
                ("own_key", &own_key.join(", ")),
                ("table", &table.sql()),
                (
                    "row_key",
                    &crate::staging::pairs(&row_key, "=", &own_key, " and "),
                ),
                ("held", &held(leased.generation, leased.versions)),
            ],
        );
        let mut statement = self.tx.prepare_cached(&sql?).explained()?;
        let mut rows = statement.query([]).explained()?;
        let mut changes: Vec<RowChange> = Vec::new();
        let first = 5 + table.key.len();
        let mut names: Option<Vec<String>> = None;
        let (mut bytes, mut versions) = (0, leased.versions);
        while let Some(row) = rows.next().explained()? {
            let operation = RowOperation::from_number(row.get(1).explained()?)?;
            let item = if operation == RowOperation::Delete {
                value::to_json(row, &table.key, 5)?
            } else {
                let names = names.get_or_insert_with(|| read::column_names(row, first));
                value::to_json(row, names, first)?
            };
            bytes += item.get().len();
            if let Some(last) = changes.last().filter(|_| bytes > BYTES_AT_ONCE) {
                versions.1 = last.version;
                break;
            }
            let columns: Option<String> = row.get(2).explained()?;
            let before: Option<String> = row.get(4).explained()?;
            changes.push(RowChange {
                operation,
                item,
                version: row.get(0).explained()?,
                bits: row.get(3).explained()?,
                columns: columns.and_then(|json| self.known_columns(&json)),
                before: None,
                images: before.as_deref().and_then(Images::read),
            });
        }
        if versions.1 < leased.versions.1 {
            let rest = (versions.1 + 1, leased.versions.1);
            self.give_back(&held(leased.generation, rest))?;
        }
        Ok(Batch {
            changes,
            key: table.key.clone(),
            ..Batch::leased(leased.generation, versions, leased.attempt, asked)
        })
    }

    /// Those of the columns that the table has now, in its order.
    fn known_columns(&self, json: &str) -> Option<Vec<String>> {
        let changed: Vec<String> = serde_json::from_str(json).ok()?;
        let columns = self.tracked.table.columns.iter();
        Some(columns.filter(|c| changed.contains(c)).cloned().collect())
    }

    /// As if rows had not been taken.
    fn give_back(&self, held: &str) -> Result<u64> {
        let unleased = include_str!("sql/watch_unleased.sql").trim_end();
        self.update(
            &format!(
                "{unleased}, _changefeed_attempt_count = max(q._changefeed_attempt_count - 1, 0)"
            ),
            held,
        )
    }

    /// About once a second: how far the function has come, and that somebody is at work.
    pub(crate) fn keep_state(&self) -> Result<()> {
        let sql = self.sql(include_str!("sql/watch_keep_state.sql"), &[]);
        self.tx
            .prepare_cached(&sql?)
            .and_then(|mut s| {
                s.execute(params![
                    self.watch.function_id,
                    self.watch.table_id,
                    self.now
                ])
            })
            .map_err(|e| self.missing(e))?;
        Ok(())
    }

    fn update(&self, set: &str, condition: &str) -> Result<u64> {
        let sql = format!("update {} as q set {set} where {condition}", self.leases);
        let count = self
            .tx
            .prepare(&sql)
            .and_then(|mut s| s.execute([]))
            .map_err(|e| self.missing(e))?;
        Ok(count as u64)
    }
}

/// The backlogs of all functions that watch a table.
pub(crate) fn functions(tx: &Connection, table_id: i64) -> Result<Vec<String>> {
    tx.prepare_cached(
        "select m.name from changefeed_watch w \
         join sqlite_master m on m.type = 'table' \
           and m.name = 'changefeed_leases_' || w.function_id || '_' || w.table_id \
         where w.table_id = ?1 order by w.function_id",
    )
    .and_then(|mut s| s.query_map([table_id], |row| row.get(0))?.collect())
    .explained()
}

struct Leased {
    generation: i64,
    versions: (i64, i64),
    attempt: u32,
}

fn held(generation: i64, versions: (i64, i64)) -> String {
    format!(
        "q._changefeed_change_version between {} and {} \
         and q._changefeed_lease_generation = {generation} and q._changefeed_parked_time is null",
        versions.0, versions.1
    )
}

/// Texts with JSON as an array of them; null if one of them is.
fn list(parts: &[&str]) -> String {
    format!("'[' || {} || ']'", parts.join(" || ',' || "))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}
