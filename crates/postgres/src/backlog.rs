//! The backlog of a function: moving changes there, leasing, settling. Each of these is one message
//! to the server that begins with the table's lock and ends with its commit, so that a process
//! which is stopped at any moment holds nothing.

mod message;
mod moving;
mod rows;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{
    Batch, BatchOutcome, Error, Result, Settled, Take, Watch, WatchPlace, WatchSettings,
    crash_point, words,
};
use deadpool_postgres::ClientWrapper;
use tokio_postgres::GenericClient;

pub(crate) use message::explain;
use message::{Answer, send, send_or};
use moving::{CHUNK, Texts, functions_sql, is_full};

use crate::error::db;
use crate::quote;
use crate::row::Cells;
use crate::session::Session;
use crate::template::fill;
use crate::tracking::{Tracked, begin, leases_name, lock};

/// Nobody else's functions and operators; an error where rows are hidden from us, because they would
/// look like deleted ones; plans that are right whatever the statistics say: our tables change too fast
/// for them; and no waiting without end and without a word: anybody can take an advisory lock.
const PLANNER: &str = "pg_catalog.set_config('lock_timeout', '5s', true), \
     pg_catalog.set_config('enable_hashjoin', 'off', true), \
     pg_catalog.set_config('enable_mergejoin', 'off', true), pg_catalog.set_config('enable_seqscan', 'off', true), \
     pg_catalog.set_config('enable_bitmapscan', 'off', true), \
     pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), \
     pg_catalog.set_config('row_security', 'off', true)";

/// How often it is made sure that the table is what it was.
const CHECK: Duration = Duration::from_secs(1);

const UNLEASED: &str = "_changefeed_lease_owner = null, _changefeed_lease_generation = null, \
     _changefeed_lease_expiration_time = null, _changefeed_retry_time = null";

/// What this process knows about the backlogs that it works on.
#[derive(Default)]
pub(crate) struct Backlogs(Mutex<HashMap<String, Arc<Backlog>>>);

impl Backlogs {
    pub(crate) fn forget(&self, leases: &str) {
        let backlogs = self.0.lock();
        backlogs
            .unwrap_or_else(PoisonError::into_inner)
            .remove(leases);
    }

    /// For each watch, up to which version its rows were leased at some time, and up to which they are
    /// done; nothing is where this process does not know.
    pub(crate) fn bounds(&self, places: &[WatchPlace]) -> (Vec<i64>, Vec<i64>) {
        let backlogs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (places.iter())
            .map(|place| {
                let leases = leases_name(&place.function_id, place.table_id);
                let known = backlogs.get(&format!("changefeed.{leases}"));
                known.map_or((0, 0), |backlog| {
                    let seen = backlog.seen();
                    (seen.floor, seen.low)
                })
            })
            .unzip()
    }
}

/// A function's backlog, and how far this process has looked.
pub(crate) struct Backlog {
    tracked: Tracked,
    /// What the table's key and columns were when this was read, and how they become JSON.
    key: Option<String>,
    signature: String,
    row_columns: String,
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
    /// When the table was last found to be what it was.
    checked: Option<Instant>,
    /// Whether there may be rows that nobody has leased yet.
    busy: bool,
    /// Whether functions came or went, so that changes must not be moved by what we know.
    stale: bool,
}

impl Session {
    /// The backlog of a watch, as this process knows it.
    pub(crate) async fn backlog(&mut self, watch: &Watch) -> Result<Arc<Backlog>> {
        let known = {
            let backlogs = self.known.backlogs.0.lock();
            let backlogs = backlogs.unwrap_or_else(PoisonError::into_inner);
            backlogs.get(&watch.leases_table).cloned()
        };
        if let Some(backlog) = known {
            return Ok(backlog);
        }
        let transaction = begin(self).await?;
        let backlog = Arc::new(Backlog::load(&*transaction, watch).await?);
        transaction.commit().await.map_err(db)?;
        let mut backlogs = self
            .known
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
        &mut self,
        watch: &Watch,
        act: impl AsyncFnOnce(&ClientWrapper, &Backlog) -> Result<T>,
    ) -> Result<T> {
        let done = match self.backlog(watch).await {
            Ok(backlog) => act(self, &backlog).await,
            Err(error) => Err(error),
        };
        done.inspect_err(|_| {
            self.known.backlogs.forget(&watch.leases_table);
        })
    }
}

impl Backlog {
    pub(crate) async fn load(client: &impl GenericClient, watch: &Watch) -> Result<Backlog> {
        // First: an alteration of the table while we read shows as another signature later.
        let columns = client
            .query_opt(
                &format!(
                    "select changefeed.table_signature(t.source), \
                       changefeed.page_columns(t.source, 'changefeed_row'), {} \
                     from changefeed.watched_table t where t.table_id = $1",
                    key_of("t.source")
                ),
                &[&watch.table_id],
            )
            .await
            .map_err(db)?
            .ok_or_else(|| watch.name.unknown())?;
        let tracked = Tracked::load(client, watch.table_id, &watch.name).await?;
        let rows = client
            .query(
                "select w.function_id, t.generation, w.name::text from changefeed.watched_table t \
                 left join changefeed.watch w on w.table_id = t.table_id \
                   and to_regclass(format('changefeed.leases_%s_%s', w.function_id, w.table_id)) \
                       is not null \
                 where t.table_id = $1 order by w.function_id",
                &[&watch.table_id],
            )
            .await
            .map_err(db)?;
        let generation = rows.first().map_or(Ok(0), |row| row.take(1))?;
        let mut functions: Vec<(String, String)> = Vec::new();
        for row in &rows {
            if let Some(function_id) = row.take(0)? {
                functions.push((function_id, row.take(2)?));
            }
        }
        if !functions.iter().any(|(id, _)| *id == watch.function_id) {
            let known = client
                .query_opt(
                    "select from changefeed.watch w where w.function_id = $1",
                    &[&watch.function_id],
                )
                .await
                .map_err(db)?;
            return Err(known.map_or_else(
                || watch.name.unknown(),
                |_| words::watch_state_deleted(watch),
            ));
        }
        Ok(Backlog {
            leases: leases_name(&watch.function_id, watch.table_id),
            function_id: watch.function_id.clone(),
            generation,
            key: columns.take(2)?,
            signature: columns.take(0)?,
            row_columns: columns.take(1)?,
            functions: functions_sql(&tracked, &functions)?,
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
        let seen = self.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, learn: impl FnOnce(&mut Seen)) {
        learn(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The beginning of every message that writes.
    fn locked(&self) -> String {
        // Statements of their own: what follows must not have a snapshot from before the lock.
        format!("select {PLANNER}; select {};", lock(self.tracked.table_id))
    }

    /// What leases the rows that were chosen before.
    fn lease_chosen(&self, take: &Take<'_>) -> Result<String> {
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
    pub(crate) async fn take(
        &self,
        client: &ClientWrapper,
        take: Take<'_>,
    ) -> Result<Option<Batch>> {
        let mut seen = self.seen();
        let pause = (take.settings.retry_interval / 4)
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

    async fn look(&self, client: &ClientWrapper, snapshot: &str, floor: i64) -> Result<Look> {
        // Not a prepared statement: one that was planned when the tables were small would read all
        // of them later, dead rows included.
        let sql = format!("select {PLANNER};")
            + &fill(
                include_str!("sql/watch_look.sql"),
                &[
                    ("log", &self.tracked.log()),
                    ("leases", &self.leases),
                    ("snapshot", snapshot),
                    ("floor", &floor.to_string()),
                ],
            )?;
        let answers = send(client, &sql).await?;
        let answer = answers.last().ok_or_else(words::server_unexpected)?;
        Ok(Look {
            snapshot: answer
                .text(0)
                .ok_or_else(words::server_unexpected)?
                .to_owned(),
            changes: answer.text(1) == Some("t"),
            rows: answer.text(2) == Some("t"),
        })
    }

    /// Rows that were tried before, or that their holder has lost.
    async fn take_again(
        &self,
        client: &ClientWrapper,
        take: Take<'_>,
        seen: &mut Seen,
    ) -> Result<Option<Batch>> {
        let asked = Instant::now();
        let settings = take.settings;
        let groups: Vec<String> = (1..=settings.attempts)
            .map(|attempt| settings.group(attempt).to_string())
            .collect();
        // An instance that waits would not notice otherwise.
        let check = (seen.checked).is_none_or(|at| at.elapsed() >= CHECK);
        let table = self.tracked.table.oid;
        let altered = match check {
            true => format!(
                "{} is distinct from {} or changefeed.table_signature({table}) <> {}",
                key_of(&table.to_string()),
                (self.key.as_ref()).map_or("null".to_owned(), |key| quote::literal(key)),
                quote::literal(&self.signature)
            ),
            false => "false".to_owned(),
        };
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
                    ("lease_chosen", &self.lease_chosen(&take)?),
                ],
            )?
            + ";"
            + &fill(
                include_str!("sql/watch_low.sql"),
                &[
                    ("leases", &self.leases),
                    ("low", &seen.low.to_string()),
                    ("floor", &seen.floor.max(seen.low).to_string()),
                    ("altered", &altered),
                    ("function_id", &quote::literal(&self.function_id)),
                    ("table_id", &self.tracked.table_id.to_string()),
                ],
            )?;
        let answers = send(client, &sql).await?;
        let [_, _, _, leased, low] = answers.as_slice() else {
            return Err(words::server_unexpected());
        };
        let batch = Leased::read(leased, asked);
        if batch.is_none() && low.text(1) == Some("t") {
            // The table is read anew, and that error says what is wrong with it.
            return Err(Error::not_found("the table was altered"));
        }
        let low = low.number(0).ok_or_else(words::server_unexpected)?;
        seen.low = low;
        self.learn(|known| {
            known.low = known.low.max(low);
            if check {
                known.checked = Some(Instant::now());
            }
            // Where there was something, there may be more.
            known.thorough = batch.is_none().then(Instant::now);
        });
        match batch {
            Some(leased) => self.rows(client, leased, take.settings).await.map(Some),
            None => Ok(None),
        }
    }

    /// New changes: moved from the log, and leased in the order of their versions.
    async fn take_new(
        &self,
        client: &ClientWrapper,
        take: Take<'_>,
        mut seen: Seen,
        moving: bool,
    ) -> Result<Option<Batch>> {
        let batch = i64::try_from(take.settings.batch).unwrap_or(i64::MAX);
        let all_moved = format!("(select current_setting('changefeed.moved')::bigint < {CHUNK})");
        let (leased, more) = loop {
            // A large backlog is moved before anything of it is leased: what comes last decides the
            // order and the net change of a row.
            while moving && (seen.snapshot.is_none() || seen.resume.is_some()) && !seen.stale {
                let range = Backlog::range(&seen);
                let sql = |texts| Ok(self.locked() + &self.move_sql(&range, CHUNK, texts)?);
                let answers =
                    send_or(client, &sql(Texts::Trusted)?, || sql(Texts::Doubted)).await?;
                self.note_moved(answers.last().ok_or_else(words::server_unexpected)?, &seen)?;
                seen = self.seen();
            }
            let asked = Instant::now();
            let range = Backlog::range(&seen);
            let lease = fill(
                include_str!("sql/watch_lease.sql"),
                &[
                    ("leases", &self.leases),
                    ("all_moved", if moving { &all_moved } else { "true" }),
                    ("floor", &seen.floor.to_string()),
                    ("batch", &take.settings.batch.to_string()),
                    ("lease_chosen", &self.lease_chosen(&take)?),
                ],
            )?;
            let sql = |texts| {
                let moved = match moving {
                    true => self.move_sql(&range, CHUNK, texts)? + ";",
                    false => String::new(),
                };
                Ok(self.locked() + &moved + &lease)
            };
            let answers = send_or(client, &sql(Texts::Trusted)?, || sql(Texts::Doubted)).await?;
            crash_point("watch.leased");
            let (moved, leased) = match answers.as_slice() {
                [_, _, moved, leased] if moving => (Some(moved), leased),
                [_, _, leased] => (None, leased),
                _ => return Err(words::server_unexpected()),
            };
            let more = match moved {
                Some(moved) => self.note_moved(moved, &seen)?,
                None => false,
            };
            if moved.is_some_and(is_full) {
                seen = self.seen();
                continue;
            }
            break (Leased::read(leased, asked), more);
        };
        self.learn(|known| {
            if let Some(leased) = &leased {
                known.floor = known.floor.max(leased.versions.1);
            }
            known.busy = more || leased.as_ref().is_some_and(|l| l.rows >= batch);
        });
        match leased {
            Some(leased) => self.rows(client, leased, take.settings).await.map(Some),
            None => Ok(None),
        }
    }

    fn held(batch: &Batch) -> String {
        format!(
            "q._changefeed_change_version between {} and {} \
             and q._changefeed_lease_generation = {} and q._changefeed_parked_time is null{}",
            batch.versions.0,
            batch.versions.1,
            batch.generation,
            batch.meant("q._changefeed_change_version", |list| {
                format!("= any('{{{list}}}'::bigint[])")
            })
        )
    }

    /// The batches of an owner, without their rows.
    pub(crate) async fn held_by(&self, client: &ClientWrapper, owner: &str) -> Result<Vec<Batch>> {
        let sql = format!("select {PLANNER};")
            + &fill(
                include_str!("sql/watch_held.sql"),
                &[("leases", &self.leases), ("owner", &quote::literal(owner))],
            )?;
        let asked = Instant::now();
        let answers = send(client, &sql).await?;
        let rows = answers.last().map_or(&[][..], |answer| &answer.rows);
        let batch = |row: &Vec<Option<String>>| {
            let number = |at: usize| row.get(at)?.as_deref()?.parse::<i64>().ok();
            let attempt = u32::try_from(number(3)?).unwrap_or(u32::MAX);
            let versions = (number(1)?, number(2)?);
            Some(Batch::leased(number(0)?, versions, attempt, asked))
        };
        rows.iter()
            .map(|row| batch(row).ok_or_else(words::server_unexpected))
            .collect()
    }

    pub(crate) async fn renew(
        &self,
        client: &ClientWrapper,
        batch: &Batch,
        lease: Duration,
    ) -> Result<u64> {
        let sql = format!(
            "{} update changefeed.{} q set _changefeed_lease_expiration_time = \
               (select changefeed.noted_time()) + {} * interval '1 millisecond' where {}",
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
        client: &ClientWrapper,
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
            BatchOutcome::Done => fill(include_str!("sql/watch_done.sql"), &common)?,
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
                fill(include_str!("sql/watch_failed.sql"), &all)?
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

/// The primary key of a table, as an expression; null without one.
fn key_of(table: &str) -> String {
    format!(
        "(select x.indkey::text || '/' || x.indnkeyatts from pg_index x \
         where x.indrelid = {table} and x.indisprimary)"
    )
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

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}
