//! The backlog of a function: moving changes there, leasing, settling. Each of these is one message
//! to the server that begins with the table's lock and ends with its commit, so that a process
//! which is stopped at any moment holds nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{
    Batch, BatchOutcome, Error, Kind, Result, RowChange, RowOperation, Settled, Take, Watch,
    WatchSettings, crash_point,
};
use deadpool_postgres::Object;
use serde_json::value::RawValue;
use tokio_postgres::{GenericClient, SimpleQueryMessage};

use crate::error::{db, is_undefined};
use crate::template::fill;
use crate::tracking::{Tracked, join, leases_name, lock};
use crate::{PostgresStore, quote};

/// Changes that are moved at a time where nobody waits; fewer than a draw of versions is good for.
const ALL: usize = 1_000_000;

/// Changes that are moved at a time: many enough to be cheap, few enough not to keep others from
/// the table's lock for long.
const CHUNK: usize = 10_000;

/// Plans that are right whatever the statistics say: our tables change too fast for them.
const PLANNER: &str = "set_config('enable_hashjoin', 'off', true), \
     set_config('enable_mergejoin', 'off', true), set_config('enable_seqscan', 'off', true), \
     set_config('enable_bitmapscan', 'off', true)";

const UNLEASED: &str = "_changefeed_lease_owner = null, _changefeed_lease_generation = null, \
     _changefeed_lease_expiration_time = null, _changefeed_retry_time = null";

/// What this process knows about the backlogs that it works on.
#[derive(Default)]
pub(crate) struct Backlogs(Mutex<HashMap<String, Arc<Backlog>>>);

impl Backlogs {
    pub(crate) fn forget(&self, leases: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(leases);
    }
}

/// A function's backlog, and how far this process has looked.
pub(crate) struct Backlog {
    tracked: Tracked,
    leases: String,
    function_id: String,
    /// Which functions the moving knows.
    generation: i64,
    functions: String,
    seen: Mutex<Seen>,
}

/// Where looks begin. None of this is needed for correctness: it spares later looks the dead rows
/// of what was processed.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// All changes that are visible in this snapshot were moved.
    snapshot: Option<String>,
    /// In the middle of a larger move: transaction and version of the last change moved.
    resume: Option<(String, String)>,
    /// All rows up to this version were leased at some time.
    floor: i64,
    /// All rows up to this version are done.
    low: i64,
    /// When rows to be tried again were last looked for.
    thorough: Option<Instant>,
    /// Whether there may be rows that nobody has leased yet.
    busy: bool,
    /// Whether functions came or went, so that changes must not be moved by what we know.
    stale: bool,
}

/// One statement's answer.
#[derive(Default)]
struct Answer {
    rows: Vec<Vec<Option<String>>>,
    count: u64,
}

impl Answer {
    fn text(&self, column: usize) -> Option<&str> {
        self.rows.first()?.get(column)?.as_deref()
    }

    fn number(&self, column: usize) -> Option<i64> {
        self.text(column)?.parse().ok()
    }
}

/// Sends statements as one message and one transaction.
async fn send(client: &Object, sql: &str) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    let mut answer = Answer::default();
    for message in client.simple_query(sql).await.map_err(explain)? {
        match message {
            SimpleQueryMessage::Row(row) => answer.rows.push(
                (0..row.len())
                    .map(|column| row.get(column).map(str::to_owned))
                    .collect(),
            ),
            SimpleQueryMessage::CommandComplete(count) => {
                answer.count = count;
                answers.push(std::mem::take(&mut answer));
            }
            _ => {}
        }
    }
    Ok(answers)
}

fn explain(error: tokio_postgres::Error) -> Error {
    if is_undefined(&error) {
        return Error::not_found("a table or column of this watch is not there any more")
            .advise("start the watch again: what was deleted is made again")
            .caused_by(error);
    }
    db(error)
}

fn unexpected() -> Error {
    Error::new(
        Kind::Database,
        "the server answered something else than was asked",
    )
}

impl PostgresStore {
    /// The backlog of a watch, as this process knows it.
    pub(crate) async fn backlog(&self, client: &Object, watch: &Watch) -> Result<Arc<Backlog>> {
        let known = {
            let backlogs = self.inner.backlogs.0.lock();
            let backlogs = backlogs.unwrap_or_else(PoisonError::into_inner);
            backlogs.get(&watch.leases_table).cloned()
        };
        if let Some(backlog) = known {
            return Ok(backlog);
        }
        let backlog = Arc::new(Backlog::load(&***client, watch).await?);
        let mut backlogs = self
            .inner
            .backlogs
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        backlogs.insert(watch.leases_table.clone(), backlog.clone());
        Ok(backlog)
    }

    /// Does something with a backlog; what this process knows of it is forgotten after an error,
    /// because another table or another server may be behind the same name next time.
    pub(crate) async fn with_backlog<T>(
        &self,
        watch: &Watch,
        act: impl AsyncFnOnce(&Object, &Backlog) -> Result<T>,
    ) -> Result<T> {
        let done = async {
            let client = self.client().await?;
            let backlog = self.backlog(&client, watch).await?;
            act(&client, &backlog).await
        };
        done.await.inspect_err(|_| {
            self.inner.backlogs.forget(&watch.leases_table);
        })
    }
}

impl Backlog {
    pub(crate) async fn load(client: &impl GenericClient, watch: &Watch) -> Result<Backlog> {
        let tracked = Tracked::load(client, watch.table_id, &watch.name).await?;
        let rows = client
            .query(
                "select w.function_id, t.generation from changefeed.watched_table t \
                 left join changefeed.watch w on w.table_id = t.table_id \
                   and to_regclass(format('changefeed.leases_%s_%s', w.function_id, w.table_id)) \
                       is not null \
                 where t.table_id = $1 order by w.function_id",
                &[&watch.table_id],
            )
            .await
            .map_err(db)?;
        let generation = rows.first().map_or(0, |row| row.get(1));
        let functions: Vec<String> = rows.iter().filter_map(|row| row.get(0)).collect();
        if !functions.contains(&watch.function_id) {
            return Err(watch.name.unknown());
        }
        Ok(Backlog {
            leases: leases_name(&watch.function_id, watch.table_id),
            function_id: watch.function_id.clone(),
            generation,
            functions: functions_sql(&tracked, &functions),
            tracked,
            seen: Mutex::new(Seen {
                // There may be very much to do, and nothing of it was leased by us.
                busy: true,
                ..Seen::default()
            }),
        })
    }

    /// Whether functions came or went since this was read.
    pub(crate) fn is_stale(&self) -> bool {
        self.seen().stale
    }

    fn seen(&self) -> Seen {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn learn(&self, learn: impl FnOnce(&mut Seen)) {
        learn(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The beginning of every message that writes.
    fn locked(&self) -> String {
        // Two statements: what follows must not have a snapshot from before the lock.
        format!("select {}; select {PLANNER};", lock(self.tracked.table_id))
    }

    /// Moves all changes, within a transaction that holds the table's lock.
    pub(crate) async fn move_all(&self, client: &impl GenericClient) -> Result<()> {
        let sql = self.move_sql("true", ALL);
        loop {
            let row = client.query_one(&sql, &[]).await.map_err(db)?;
            if usize::try_from(row.get::<_, i64>(1)).is_ok_and(|moved| moved < ALL) {
                return Ok(());
            }
        }
    }

    /// Moves up to so many changes.
    fn move_sql(&self, range: &str, chunk: usize) -> String {
        let tracked = &self.tracked;
        fill(
            include_str!("sql/watch_move.sql"),
            &[
                ("log", &tracked.log()),
                (
                    "log_keys",
                    &join(&tracked.key, ", ", |n, c| {
                        format!(
                            "case when l.raw is null then l.{} else (l.raw->>{})::{} end as k{n}",
                            c.sql(),
                            n - 1,
                            c.type_sql
                        )
                    }),
                ),
                ("k", &join(&tracked.key, ", ", |n, _| format!("s.k{n}"))),
                (
                    "k_not_null",
                    &join(&tracked.key, " and ", |n, _| format!("s.k{n} is not null")),
                ),
                ("table_id", &tracked.table_id.to_string()),
                ("generation", &self.generation.to_string()),
                ("range", range),
                ("chunk", &chunk.to_string()),
                ("functions", &self.functions),
            ],
        )
    }

    fn range(seen: &Seen) -> String {
        let Some(snapshot) = &seen.snapshot else {
            // A thorough look: also at what was written under another server's transaction ids.
            return match &seen.resume {
                Some((xid, version)) => format!("(l.xid, l.version) > ('{xid}'::xid8, {version})"),
                None => "true".to_owned(),
            };
        };
        match &seen.resume {
            Some((xid, version)) => format!(
                "(l.xid, l.version) > ('{xid}'::xid8, {version}) \
                 and l.xid < pg_snapshot_xmax(pg_current_snapshot())"
            ),
            // Transactions that were at work then and are not any more, and all later ones.
            None => format!(
                "(l.xid >= pg_snapshot_xmax('{snapshot}'::pg_snapshot) \
                  and l.xid < pg_snapshot_xmax(pg_current_snapshot()) \
                  or l.xid = any(array(select x from pg_snapshot_xip('{snapshot}'::pg_snapshot) x \
                       where pg_visible_in_snapshot(x, pg_current_snapshot()))))"
            ),
        }
    }

    /// What leases the rows that were chosen before.
    fn lease_chosen(&self, take: &Take<'_>) -> String {
        fill(
            include_str!("sql/watch_lease_chosen.sql"),
            &[
                ("leases", &self.leases),
                ("lease", &millis(take.settings.lease).to_string()),
                ("owner", &quote::literal(take.owner)),
            ],
        )
    }

    /// Leases the next batch and reads its rows.
    pub(crate) async fn take(&self, client: &Object, take: Take<'_>) -> Result<Option<Batch>> {
        let mut seen = self.seen();
        let pause = (take.settings.interval / 4)
            .clamp(Duration::from_millis(5), Duration::from_millis(250));
        let thorough = seen.thorough.is_none_or(|at| at.elapsed() >= pause);
        let look = match (&seen.snapshot, seen.busy) {
            (Some(snapshot), false) if seen.resume.is_none() => {
                Some(self.look(client, snapshot, seen.floor).await?)
            }
            _ => None,
        };
        let (moving, leasing) = match &look {
            Some(look) => (look.changes, look.changes || look.rows),
            None => (true, true),
        };
        if let Some(look) = look.filter(|look| !look.changes) {
            seen.snapshot = Some(look.snapshot.clone());
            self.learn(|known| known.snapshot = Some(look.snapshot));
        }
        if thorough && let Some(batch) = self.take_again(client, take, &mut seen).await? {
            return Ok(Some(batch));
        }
        if !leasing {
            return Ok(None);
        }
        self.take_new(client, take, seen, moving).await
    }

    async fn look(&self, client: &Object, snapshot: &str, floor: i64) -> Result<Look> {
        let sql = fill(
            include_str!("sql/watch_look.sql"),
            &[("log", &self.tracked.log()), ("leases", &self.leases)],
        );
        let statement = client.prepare_cached(&sql).await.map_err(db)?;
        let row = client
            .query_one(&statement, &[&snapshot, &floor])
            .await
            .map_err(db)?;
        Ok(Look {
            snapshot: row.get(0),
            changes: row.get(1),
            rows: row.get(2),
        })
    }

    /// Rows that were tried before, or that their holder has lost.
    async fn take_again(
        &self,
        client: &Object,
        take: Take<'_>,
        seen: &mut Seen,
    ) -> Result<Option<Batch>> {
        let asked = Instant::now();
        let settings = take.settings;
        let groups: Vec<String> = (1..=settings.attempts)
            .map(|attempt| settings.group(attempt).to_string())
            .collect();
        // Behind the floor are only rows that nobody has leased yet, perhaps very many.
        let high = if seen.busy { seen.floor } else { i64::MAX };
        let sql = self.locked()
            + &fill(
                include_str!("sql/watch_lease_again.sql"),
                &[
                    ("leases", &self.leases),
                    ("low", &seen.low.to_string()),
                    ("high", &high.to_string()),
                    ("floor", &seen.floor.to_string()),
                    ("unleased", UNLEASED),
                    ("newer_becomes_current", include_str!("sql/watch_newer.sql")),
                    ("attempts", &settings.attempts.to_string()),
                    ("owner", &quote::literal(take.owner)),
                    ("batch", &settings.batch.to_string()),
                    ("groups", &groups.join(",")),
                    ("lease_chosen", &self.lease_chosen(&take)),
                ],
            )
            + ";"
            + &fill(
                include_str!("sql/watch_low.sql"),
                &[
                    ("leases", &self.leases),
                    ("low", &seen.low.to_string()),
                    ("floor", &seen.floor.max(seen.low).to_string()),
                    ("function_id", &quote::literal(&self.function_id)),
                    ("table_id", &self.tracked.table_id.to_string()),
                ],
            );
        let answers = send(client, &sql).await?;
        let [_, _, _, leased, low] = answers.as_slice() else {
            return Err(unexpected());
        };
        let batch = Leased::read(leased, asked);
        let low = low.number(0).ok_or_else(unexpected)?;
        seen.low = low;
        self.learn(|known| {
            known.low = known.low.max(low);
            // Where there was something, there may be more.
            known.thorough = batch.is_none().then(Instant::now);
        });
        match batch {
            Some(leased) => self.rows(client, leased).await.map(Some),
            None => Ok(None),
        }
    }

    /// New changes: moved from the log, and leased in the order of their versions.
    async fn take_new(
        &self,
        client: &Object,
        take: Take<'_>,
        seen: Seen,
        moving: bool,
    ) -> Result<Option<Batch>> {
        let asked = Instant::now();
        let batch = i64::try_from(take.settings.batch).unwrap_or(i64::MAX);
        let mut sql = self.locked();
        if moving {
            sql.push_str(&self.move_sql(&Backlog::range(&seen), CHUNK));
            sql.push(';');
        }
        sql.push_str(&fill(
            include_str!("sql/watch_lease.sql"),
            &[
                ("leases", &self.leases),
                ("floor", &seen.floor.to_string()),
                ("batch", &take.settings.batch.to_string()),
                ("lease_chosen", &self.lease_chosen(&take)),
            ],
        ));
        let answers = send(client, &sql).await?;
        crash_point("watch.leased");
        let (moved, leased) = match answers.as_slice() {
            [_, _, moved, leased] if moving => (Some(moved), leased),
            [_, _, leased] => (None, leased),
            _ => return Err(unexpected()),
        };
        let more = match moved {
            Some(moved) => self.note_moved(moved, &seen)?,
            None => false,
        };
        let leased = Leased::read(leased, asked);
        self.learn(|known| {
            if let Some(leased) = &leased {
                known.floor = known.floor.max(leased.versions.1);
            }
            known.busy = more || leased.as_ref().is_some_and(|l| l.rows >= batch);
        });
        match leased {
            Some(leased) => self.rows(client, leased).await.map(Some),
            None => Ok(None),
        }
    }

    /// Remembers how far the changes were moved; returns whether there are more.
    fn note_moved(&self, moved: &Answer, seen: &Seen) -> Result<bool> {
        let snapshot = moved.text(0).ok_or_else(unexpected)?.to_owned();
        let count = moved.number(1).ok_or_else(unexpected)?;
        let last = moved
            .text(2)
            .and_then(|text| text.split_once(','))
            .map(|(xid, version)| (xid.to_owned(), version.to_owned()));
        let full = usize::try_from(count).is_ok_and(|count| count >= CHUNK);
        let stale = moved.number(3) != Some(self.generation);
        self.learn(|known| {
            known.stale |= stale;
            if stale {
                // Nothing was moved.
            } else if full {
                known.resume = last;
            } else if seen.resume.is_some() {
                // Something may have come up to where we resumed: once more from the beginning.
                known.resume = None;
            } else {
                known.snapshot = Some(snapshot);
            }
        });
        Ok(full || stale || seen.resume.is_some())
    }

    /// The rows of a batch. Not under the lock: a process that is stopped while it reads would
    /// keep it.
    async fn rows(&self, client: &Object, leased: Leased) -> Result<Batch> {
        let mut batch = Batch {
            generation: leased.generation,
            versions: leased.versions,
            attempt: leased.attempt,
            changes: Vec::new(),
            asked: leased.asked,
        };
        match self.read(client, &leased).await {
            Ok(changes) => {
                batch.changes = changes;
                Ok(batch)
            }
            Err(error) => {
                // Nobody else has to wait for the lease to end.
                let settings = WatchSettings::default();
                let released = self.settle(client, &batch, &BatchOutcome::Released, &settings);
                if let Err(error) = released.await {
                    tracing::debug!(%error, "a batch that could not be read was not given back");
                }
                Err(error)
            }
        }
    }

    async fn read(&self, client: &Object, leased: &Leased) -> Result<Vec<RowChange>> {
        let tracked = &self.tracked;
        let first = tracked.key.first().ok_or_else(unexpected)?;
        let gone = format!(
            "(changefeed_row.{} is null or q._changefeed_operation >= 2)",
            first.sql()
        );
        let sql = format!("select {PLANNER};")
            + &fill(
                include_str!("sql/watch_rows.sql"),
                &[
                    ("leases", &self.leases),
                    ("gone", &gone),
                    (
                        "key_item",
                        &join(&tracked.key, ", ", |_, c| format!("q.{0} as {0}", c.sql())),
                    ),
                    ("table", &tracked.table.sql),
                    (
                        "row_key",
                        &join(&tracked.key, " and ", |_, c| {
                            format!("changefeed_row.{0} = q.{0}", c.sql())
                        }),
                    ),
                    ("from", &leased.versions.0.to_string()),
                    ("to", &leased.versions.1.to_string()),
                    ("generation", &leased.generation.to_string()),
                ],
            );
        let mut answers = send(client, &sql).await?;
        let rows = answers.pop().ok_or_else(unexpected)?.rows;
        let mut changes = Vec::with_capacity(rows.len());
        for row in rows {
            let mut columns = row.into_iter().flatten();
            let (Some(version), Some(operation), Some(item)) =
                (columns.next(), columns.next(), columns.next())
            else {
                return Err(unexpected());
            };
            let number = |text: String| text.parse::<i64>().map_err(|_| unexpected());
            changes.push(RowChange {
                operation: RowOperation::from_number(number(operation)?)?,
                item: RawValue::from_string(item)
                    .map_err(|e| Error::new(Kind::Database, "a row is not JSON").caused_by(e))?,
                version: number(version)?,
            });
        }
        Ok(changes)
    }

    fn held(batch: &Batch) -> String {
        format!(
            "q._changefeed_change_version between {} and {} \
             and q._changefeed_lease_generation = {} and q._changefeed_parked_time is null",
            batch.versions.0, batch.versions.1, batch.generation
        )
    }

    pub(crate) async fn renew(
        &self,
        client: &Object,
        batch: &Batch,
        lease: Duration,
    ) -> Result<u64> {
        let sql = format!(
            "{} update changefeed.{} q set _changefeed_lease_expiration_time = \
               clock_timestamp() + {} * interval '1 millisecond' where {}",
            self.locked(),
            self.leases,
            millis(lease),
            Backlog::held(batch)
        );
        let answers = send(client, &sql).await?;
        Ok(answers.last().map_or(0, |a| a.count))
    }

    pub(crate) async fn settle(
        &self,
        client: &Object,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled> {
        let held = Backlog::held(batch);
        let common = [
            ("leases", self.leases.as_str()),
            ("held", held.as_str()),
            ("unleased", UNLEASED),
        ];
        let sql = match outcome {
            BatchOutcome::Done => fill(include_str!("sql/watch_done.sql"), &common),
            BatchOutcome::Failed { error } => {
                let more = [
                    ("error", quote::literal(&error.replace('\0', ""))),
                    ("attempts", settings.attempts.to_string()),
                    (
                        "wait",
                        millis(settings.wait_after(batch.attempt)).to_string(),
                    ),
                ];
                let mut all = common.to_vec();
                all.push(("newer_becomes_current", include_str!("sql/watch_newer.sql")));
                all.extend(more.iter().map(|(k, v)| (*k, v.as_str())));
                fill(include_str!("sql/watch_failed.sql"), &all)
            }
            BatchOutcome::Released => format!(
                "update changefeed.{} q set {UNLEASED}, _changefeed_attempt_count = \
                   greatest(q._changefeed_attempt_count - 1, 0) where {held}",
                self.leases
            ),
        };
        let mut message = self.locked();
        if matches!(outcome, BatchOutcome::Done) {
            // A success that a crash of the server takes back is handed over again, as any success
            // that did not reach it. Leases and failures are waited for.
            message.push_str("select set_config('synchronous_commit', 'off', true);");
        }
        let before = message.matches(';').count();
        let answers = send(client, &(message + &sql)).await?;
        let counts: Vec<u64> = answers.iter().skip(before).map(|a| a.count).collect();
        let parked = match outcome {
            BatchOutcome::Failed { .. } => counts.first().copied().unwrap_or(0),
            _ => 0,
        };
        // Rows that were given back or wait are before the floor: only a thorough look sees them.
        if !matches!(outcome, BatchOutcome::Done) {
            self.learn(|known| known.thorough = None);
        }
        Ok(Settled {
            rows: counts.iter().sum(),
            parked,
        })
    }
}

struct Look {
    snapshot: String,
    changes: bool,
    rows: bool,
}

struct Leased {
    generation: i64,
    versions: (i64, i64),
    attempt: u32,
    rows: i64,
    asked: Instant,
}

impl Leased {
    fn read(answer: &Answer, asked: Instant) -> Option<Leased> {
        Some(Leased {
            generation: answer.number(0)?,
            versions: (answer.number(1)?, answer.number(2)?),
            attempt: u32::try_from(answer.number(3)?).unwrap_or(u32::MAX),
            rows: answer.number(4)?,
            asked,
        })
    }
}

/// What moves changes to each function's backlog.
fn functions_sql(tracked: &Tracked, functions: &[String]) -> String {
    let mut sql = String::new();
    for (n, function_id) in functions.iter().enumerate() {
        sql.push_str(&fill(
            include_str!("sql/watch_move_function.sql"),
            &[
                ("n", &n.to_string()),
                ("leases", &leases_name(function_id, tracked.table_id)),
                (
                    "same_key",
                    &join(&tracked.key, " and ", |k, c| {
                        format!("q.{} = n.k{k}", c.sql())
                    }),
                ),
                ("keys", &tracked.keys("")),
                ("n_k", &join(&tracked.key, ", ", |k, _| format!("n.k{k}"))),
            ],
        ));
    }
    sql
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}
