//! Waking watches, sweepers and dispatchers: one session per store, however many there are, waits in the server until
//! somebody has committed something, tells sweepers and dispatchers of it, and looks which watches it was for.
//!
//! This is a hint and nothing rests on it. A take or a sweep goes by what is committed when it is called; those who
//! are told of nothing look anyway from time to time; and while the session does not answer, or the server
//! is not to be reached, all of them are woken several times a second.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use changefeed_core::{Error, Kind, Listener, Result, WatchPlace};
use tokio::sync::Notify;
use tokio_postgres::types::ToSql;

use super::Task;
use crate::backlog::explain;
use crate::error::db;
use crate::row::Cells;
use crate::session::{Limit, Session, lend};
use crate::template::fill;
use crate::tracking::{leases_name, log_name};
use crate::{Inner, PostgresStore};

/// What the server does while it waits: for how long it sleeps between two snapshots, and how long it does
/// so before it answers anyway.
struct Nap {
    sleep: i32,
    limit: i32,
}

/// While changes come, and when there were none for a second: a sleep costs little, but many do not.
const BUSY: Nap = Nap {
    sleep: 3,
    limit: 100,
};
const QUIET: Nap = Nap {
    sleep: 8,
    limit: 250,
};
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// When nothing was committed for longer: the first one is seen within this sleep.
const ASLEEP: Nap = Nap {
    sleep: 12,
    limit: 500,
};
const ASLEEP_AFTER: Duration = Duration::from_secs(15);

/// An answer that is not there by then may never come.
const LATE: Duration = Duration::from_secs(1);
/// How often a watch is woken that has to look for itself: there are rows that wait for a time to come, or
/// we cannot look.
const SLOWLY: Duration = Duration::from_millis(250);
/// How often tables that were missing are looked for.
const MISSING: Duration = Duration::from_secs(1);

const SNAPSHOT: &str = "select pg_catalog.pg_current_snapshot()::text";
/// Whether a table has changes that were not visible in the last snapshot: those of transactions that had not
/// begun, or had not ended. Who has aborted is never visible.
const CHANGED: &str = "exists (select from changefeed.{log} l where l._changefeed_xid >= $1::text::xid8) \
     or exists (select from changefeed.{log} l where l._changefeed_xid = any($2::text[]::xid8[]))";
/// Whether there are rows that somebody else has moved and nobody has leased.
const FREE: &str = "exists (select from changefeed.{leases} q \
     where q._changefeed_change_version > ($3::bigint[])[{number}] and q._changefeed_parked_time is null \
       and q._changefeed_lease_generation is null and q._changefeed_retry_time is null)";
/// Whether there are rows at all.
const ROWS: &str = "exists (select from changefeed.{leases} q \
     where q._changefeed_change_version > ($4::bigint[])[{number}] and q._changefeed_parked_time is null)";

/// The task that looks for changes of watched tables.
#[derive(Default)]
pub(crate) struct WatchProber {
    task: Task,
    newcomer: Arc<Notify>,
}

impl PostgresStore {
    pub(super) fn listen_to(&self, place: WatchPlace) -> Listener<WatchPlace> {
        let listener = self.inner.known.watches.listen(place);
        self.begin_waiting();
        listener
    }

    pub(super) fn hear_commits(&self) -> Listener<()> {
        let listener = self.inner.known.commits.listen(());
        self.begin_waiting();
        listener
    }

    fn begin_waiting(&self) {
        let prober = &self.inner.watch_prober;
        let (store, newcomer) = (Arc::downgrade(&self.inner), prober.newcomer.clone());
        prober
            .task
            .ensure(|| tokio::spawn(probe(store, newcomer)).abort_handle());
        prober.newcomer.notify_one();
    }
}

/// Looks until the store is gone, and not at all while nobody listens.
async fn probe(store: Weak<Inner>, newcomer: Arc<Notify>) {
    let mut looks = Looks::default();
    let mut complained = false;
    while let Some(inner) = store.upgrade() {
        let (pool, known) = (inner.door.waiting.clone(), inner.known.clone());
        // Not kept while waiting, so that the store can be dropped.
        drop(inner);
        let hub = &known.watches;
        let wake_all = || {
            hub.wake_all();
            known.commits.wake_all();
        };
        let mut places = hub.watched();
        if places.is_empty() && known.commits.watched().is_empty() {
            looks = Looks::default();
            newcomer.notified().await;
            continue;
        }
        places.sort_unstable();
        let began = Instant::now();
        let looked = {
            let look = async |session: &mut Session| looks.look(session, places).await;
            let mut call = pin!(lend(&pool, &known, Limit::BRIEF, look));
            loop {
                tokio::select! {
                    looked = &mut call => break looked,
                    () = tokio::time::sleep(SLOWLY) => {}
                }
                if began.elapsed() >= LATE {
                    wake_all();
                }
            }
        };
        match looked {
            Ok(news) => {
                complained = false;
                if news.commits {
                    known.commits.wake_all();
                }
                news.watches.iter().for_each(|place| hub.wake(place));
            }
            Err(error) => {
                // A watch that was just dropped, or a table that somebody alters, is nothing to tell of.
                let passing = matches!(error.kind(), Kind::NotFound | Kind::Busy);
                if !passing && !complained {
                    tracing::warn!(%error, "cannot wait for commits; sweepers, dispatchers and watches look for themselves");
                }
                complained |= !passing;
                // Another server may be behind the same name next time.
                looks = Looks::default();
                wake_all();
                tokio::time::sleep(SLOWLY).await;
            }
        }
    }
}

/// What was looked for, and what was seen last.
#[derive(Default)]
struct Looks {
    plan: Option<Plan>,
    /// Everything visible in this snapshot was announced.
    snapshot: Option<Snapshot>,
    changed: Option<Instant>,
    /// When something was committed last, whatever it was.
    committed: Option<Instant>,
    watches: HashMap<WatchPlace, State>,
}

/// Who is to be woken.
struct News {
    /// Whether a transaction has ended since the last look.
    commits: bool,
    watches: Vec<WatchPlace>,
}

/// What is known of a watch.
struct State {
    /// Whether there are rows in its backlog, which may wait for a time to come.
    rows: bool,
    woken: Instant,
}

/// A statement that looks for changes of all tables and at all backlogs.
struct Plan {
    places: Vec<WatchPlace>,
    tables: Vec<i64>,
    /// Of the places, those whose tables are there.
    looked_at: Vec<WatchPlace>,
    sql: String,
    made: Instant,
}

/// A snapshot of the server, in its words.
struct Snapshot {
    text: String,
    /// The first transaction that had not begun, and those that had not ended.
    next: String,
    running: Vec<String>,
}

impl Snapshot {
    fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split(':').skip(1);
        let (Some(next), Some(running)) = (parts.next(), parts.next()) else {
            return Err(Error::new(Kind::Database, "this is not a snapshot"));
        };
        Ok(Snapshot {
            text: text.to_owned(),
            next: next.to_owned(),
            running: (running.split(',').filter(|xid| !xid.is_empty()))
                .map(str::to_owned)
                .collect(),
        })
    }
}

impl Plan {
    /// A plan without the watches whose tables were deleted: they find out for themselves.
    async fn make(session: &Session, places: Vec<WatchPlace>) -> Result<Self> {
        if places.is_empty() {
            return Ok(Plan::of_nothing());
        }
        let names: Vec<String> = (places.iter())
            .flat_map(|place| [log_name(place.table_id), leases_name_of(place)])
            .map(|name| format!("changefeed.{name}"))
            .collect();
        let row = session
            .query_one(include_str!("../sql/watch_tables.sql"), &[&names])
            .await
            .map_err(db)?;
        let there: Vec<bool> = row.take(0)?;
        let looked_at: Vec<WatchPlace> = (places.iter().zip(there.chunks(2)))
            .filter(|(_, there)| there.iter().all(|there| *there))
            .map(|(place, _)| place.clone())
            .collect();
        let mut tables: Vec<i64> = looked_at.iter().map(|place| place.table_id).collect();
        tables.dedup();
        let changed = (tables.iter())
            .map(|table| fill(CHANGED, &[("log", &log_name(*table))]))
            .collect::<Result<Vec<_>>>()?;
        let of_each = |what: &str| {
            (looked_at.iter().zip(1..))
                .map(|(place, number): (_, i32)| {
                    let (leases, number) = (leases_name_of(place), number.to_string());
                    fill(what, &[("leases", &leases), ("number", &number)])
                })
                .collect::<Result<Vec<_>>>()
                .map(|parts| parts.join(", "))
        };
        let sql = fill(
            include_str!("../sql/watch_look_all.sql"),
            &[
                ("changed", &changed.join(", ")),
                ("free", &of_each(FREE)?),
                ("rows", &of_each(ROWS)?),
            ],
        )?;
        Ok(Plan {
            places,
            tables,
            looked_at,
            sql,
            made: Instant::now(),
        })
    }

    /// Only whether something was committed.
    fn of_nothing() -> Self {
        Plan {
            places: Vec::new(),
            tables: Vec::new(),
            looked_at: Vec::new(),
            sql: SNAPSHOT.to_owned(),
            made: Instant::now(),
        }
    }

    fn is_stale(&self, places: &[WatchPlace]) -> bool {
        let missing = self.looked_at.len() < self.places.len();
        self.places != places || missing && self.made.elapsed() >= MISSING
    }
}

impl Looks {
    /// Waits until something was committed since the last look, but not for long, and looks again.
    /// Returns who is to be woken.
    async fn look(&mut self, session: &Session, places: Vec<WatchPlace>) -> Result<News> {
        let plan = match self.plan.take().filter(|plan| !plan.is_stale(&places)) {
            Some(plan) => plan,
            None => {
                // Those for other watches are not needed any more.
                session.statement_cache.clear();
                Plan::make(session, places).await?
            }
        };
        let plan = self.plan.insert(plan);
        let Some(seen) = &self.snapshot else {
            let row = session.query_one(SNAPSHOT, &[]).await.map_err(db)?;
            self.snapshot = Some(Snapshot::parse(row.take(0)?)?);
            // What was committed until now is for them to see.
            return Ok(News {
                commits: true,
                watches: plan.places.clone(),
            });
        };
        let past = |at: Option<Instant>, time| at.is_none_or(|at| at.elapsed() >= time);
        let nap = match () {
            () if !past(self.changed, QUIET_AFTER) => BUSY,
            () if !past(self.committed, ASLEEP_AFTER) => QUIET,
            () => ASLEEP,
        };
        let wait = session
            .prepare_cached("call changefeed.await_commit($1, $2, $3)")
            .await
            .map_err(db)?;
        let look = session.prepare_cached(&plan.sql).await.map_err(explain)?;
        let (floors, lows) = session.known.backlogs.bounds(&plan.looked_at);
        let until: [&(dyn ToSql + Sync); 3] = [&seen.text, &nap.sleep, &nap.limit];
        let since: [&(dyn ToSql + Sync); 4] = [&seen.next, &seen.running, &floors, &lows];
        let since = if plan.places.is_empty() {
            &since[..0]
        } else {
            &since
        };
        // Sent at once: when the wait has ended, the answer is on its way.
        let (waited, found) = tokio::join!(
            session.execute(&wait, &until),
            session.query_one(&look, since),
        );
        waited.map_err(db)?;
        let row = found.map_err(explain)?;
        let now_at = Snapshot::parse(row.take(0)?)?;
        let commits = now_at.text != seen.text;
        if commits {
            self.committed = Some(Instant::now());
        }
        self.snapshot = Some(now_at);
        if plan.places.is_empty() {
            return Ok(News {
                commits,
                watches: Vec::new(),
            });
        }
        let changed: Vec<bool> = row.take(1)?;
        let changed: HashMap<i64, bool> = plan.tables.iter().copied().zip(changed).collect();
        let now = Instant::now();
        if changed.values().any(|changed| *changed) {
            self.changed = Some(now);
        }
        let (free, rows): (Vec<bool>, Vec<bool>) = (row.take(2)?, row.take(3)?);
        let found: HashMap<&WatchPlace, (bool, bool)> = (plan.looked_at.iter())
            .zip(free.into_iter().zip(rows))
            .collect();
        let mut news = Vec::new();
        for place in &plan.places {
            // One that cannot be looked at is as one whose rows wait.
            let (free, rows) = found.get(place).copied().unwrap_or((false, true));
            let moved = changed.get(&place.table_id) == Some(&true);
            // One that is looked at for the first time may have missed something.
            let other = self.watches.get(place).is_none_or(|state| {
                state.rows != rows || rows && now.duration_since(state.woken) >= SLOWLY
            });
            if free || moved || other {
                self.watches
                    .insert(place.clone(), State { rows, woken: now });
                news.push(place.clone());
            }
        }
        self.watches.retain(|place, _| plan.places.contains(place));
        Ok(News {
            commits,
            watches: news,
        })
    }
}

fn leases_name_of(place: &WatchPlace) -> String {
    leases_name(&place.function_id, place.table_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_tells_what_may_still_become_visible() {
        let snapshot = Snapshot::parse("736:741:736,738").unwrap();
        assert_eq!(snapshot.next, "741");
        assert_eq!(snapshot.running, ["736", "738"]);
        assert!(Snapshot::parse("736:736:").unwrap().running.is_empty());
        assert!(Snapshot::parse("something else").is_err());
    }
}
