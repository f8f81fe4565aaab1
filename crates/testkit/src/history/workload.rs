//! Writers, readers and sweepers that behave as badly as real ones, from a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use changefeed_core::{DEFAULT_START, Feed, Kind, ShardId, Store, SweepGroup};
use fastrand::Rng;
use tokio::task::JoinSet;

use super::{Following, Recorder, ShardKey, Violation, check, identity};
use crate::backend::{Backend, Session, SqlError, read_all, settle};
use crate::eventually;

/// How long the writers go on for the sake of readers who have not read anything yet.
const PATIENCE: Duration = Duration::from_secs(20);

/// How much of what.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Where all randomness comes from. Printed, so that a failure can be tried again.
    pub seed: u64,
    /// Writers at the same time.
    pub writers: usize,
    /// How long they write.
    pub duration: Duration,
    /// The most that a writer does, however long it may.
    pub transactions: usize,
    /// Readers of each shard, every one slower than the one before.
    pub readers: usize,
    /// Sweeping tasks within this process, each with a store of its own; none when other
    /// processes sweep.
    pub sweepers: usize,
    /// Whether change ids come from here and not from the database's sequence, which may draw
    /// an id again that a crash of the server took from an open transaction.
    pub own_ids: bool,
    /// The mean pause of a writer between transactions and of a reader between pages, for runs
    /// that take hours and whose history has to be kept.
    pub pace: Duration,
    /// The table of a captured feed, with the column `id` as its key: writers insert rows there,
    /// and the id of a row is what tells its change from others.
    pub captured: Option<&'static str>,
}

/// What a history consists of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent {
    /// Transactions that were committed.
    pub committed: usize,
    /// Transactions that were rolled back.
    pub rolled_back: usize,
    /// Transactions whose end nobody knows.
    pub in_doubt: usize,
    /// Changes that got a number.
    pub changes: usize,
    /// Pages that readers got.
    pub pages: usize,
}

impl Workload {
    /// A short one, with the seed of `CHANGEFEED_TEST_SEED` or a new one.
    pub fn short() -> Self {
        let seed = std::env::var("CHANGEFEED_TEST_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| fastrand::u64(..));
        Workload {
            seed,
            writers: 16,
            duration: Duration::from_secs(if crate::soaking() { 120 } else { 3 }),
            transactions: if crate::soaking() { usize::MAX } else { 60 },
            readers: 3,
            sweepers: 2,
            own_ids: false,
            pace: Duration::ZERO,
            captured: None,
        }
    }

    /// Runs it on all shards of a feed, waits until all is quiet, and fails unless the promises
    /// were kept. `meanwhile` runs beside the writers, who go on until it ends.
    pub async fn run(
        &self,
        backend: Arc<dyn Backend>,
        feed: &Feed,
        meanwhile: impl AsyncFnOnce(Recorder, Rng),
    ) -> Extent {
        eprintln!("CHANGEFEED_TEST_SEED={}", self.seed);
        let mut rng = Rng::with_seed(self.seed);
        let start: BTreeMap<ShardKey, i64> = feed
            .shards
            .iter()
            .map(|s| ((feed.id.0, s.shard.0), DEFAULT_START))
            .collect();
        let recorder = Recorder::new(start);
        let stop = Arc::new(AtomicBool::new(false));
        let meanwhile_ended = Arc::new(AtomicBool::new(false));

        let mut sweepers = JoinSet::new();
        for _ in 0..self.sweepers {
            let store = backend.store().await;
            sweepers.spawn(sweep(store, feed.clone(), rng.fork(), Arc::clone(&stop)));
        }
        let mut readers = JoinSet::new();
        for shard in &feed.shards {
            for speed in 0..self.readers {
                let name = format!("reader-{}-{speed}", shard.shard);
                let following = Following::new(&recorder, &name, feed, shard.shard);
                let (store, rng, stop) = (backend.store().await, rng.fork(), Arc::clone(&stop));
                let pace = self.pace;
                readers.spawn(async move {
                    let following = follow(&*store, following, speed, pace, rng, &stop).await;
                    (store, following)
                });
            }
        }
        let mut writers = JoinSet::new();
        let began = Instant::now();
        for number in 0..self.writers {
            let writer = Writer {
                name: format!("writer-{number}"),
                backend: Arc::clone(&backend),
                recorder: recorder.clone(),
                feed: feed.clone(),
                rng: rng.fork(),
                own_ids: self.own_ids,
                captured: self.captured,
            };
            let pace = self.pace;
            let (duration, most) = (self.duration, self.transactions);
            let meanwhile_ended = Arc::clone(&meanwhile_ended);
            writers.spawn(async move {
                let mut writer = writer;
                let mut done = 0;
                // A history in which nobody read while somebody wrote shows little: a sweeper or a
                // reader may need seconds for its first call on a server that has to read our
                // procedures for each new session.
                while began.elapsed() < duration && done < most
                    || !meanwhile_ended.load(Ordering::Relaxed)
                    || !writer.recorder.anything_read()
                        && began.elapsed() < PATIENCE * crate::patience()
                {
                    writer.transaction().await;
                    keep_pace(&mut writer.rng, pace).await;
                    done += 1;
                }
            });
        }
        meanwhile(recorder.clone(), rng.fork()).await;
        meanwhile_ended.store(true, Ordering::Relaxed);
        while let Some(outcome) = writers.join_next().await {
            outcome.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        while let Some(outcome) = sweepers.join_next().await {
            outcome.unwrap();
        }
        let mut followers = Vec::new();
        while let Some(outcome) = readers.join_next().await {
            followers.push(outcome.unwrap());
        }
        assert!(
            recorder.anything_read(),
            "nothing was numbered and read while the writers wrote"
        );
        self.quiet(&*backend, &recorder, feed, followers).await;
        self.assert_kept(&recorder)
    }

    /// Waits until everything committed has its number, and lets all readers finish.
    async fn quiet(
        &self,
        backend: &dyn Backend,
        recorder: &Recorder,
        feed: &Feed,
        followers: Vec<(Arc<dyn Store>, Following)>,
    ) {
        let store = backend.store().await;
        // A session whose client was killed may still be about to end at the server.
        eventually("nothing is pending", || async {
            for shard in &feed.shards {
                settle(&*store, shard.sweep_group).await;
            }
            let states = store.shard_states(feed).await.unwrap();
            let quiet = states.iter().all(|state| state.pending == 0) && backend.at_rest().await;
            quiet.then_some(())
        })
        .await;
        for shard in &feed.shards {
            settle(&*store, shard.sweep_group).await;
        }
        for (store, mut following) in followers {
            // Its connection may have died with a server that is back by now.
            let following = &mut following;
            for attempt in 1.. {
                match following.finish(&*store).await {
                    Ok(()) => break,
                    Err(error) => assert!(attempt < 5, "{error:?}"),
                }
            }
        }
        for shard in &feed.shards {
            let numbers = read_all(&*store, feed, shard.shard.0, 1000)
                .await
                .iter()
                .map(|change| {
                    let number = change.cursor.number().unwrap();
                    (number, identity(feed, change).unwrap())
                })
                .collect();
            recorder.table((feed.id.0, shard.shard.0), numbers);
        }
    }

    /// Fails with the seed and the first violations, if there are any.
    fn assert_kept(&self, recorder: &Recorder) -> Extent {
        let history = recorder.history();
        let violations: Vec<Violation> = check(&history);
        let (committed, rolled_back, in_doubt) = recorder.outcomes();
        eprintln!(
            "{committed} committed, {rolled_back} rolled back, {in_doubt} in doubt, {} pages",
            history.pages.len()
        );
        assert!(
            violations.is_empty(),
            "{} violations with CHANGEFEED_TEST_SEED={}, the first of them:\n{:#?}",
            violations.len(),
            self.seed,
            &violations[..violations.len().min(5)]
        );
        assert!(committed > 0 && rolled_back > 0, "the history is too tame");
        Extent {
            committed,
            rolled_back,
            in_doubt,
            changes: history.table.values().map(Vec::len).sum(),
            pages: history.pages.len(),
        }
    }
}

async fn sweep(store: Arc<dyn Store>, feed: Feed, mut rng: Rng, stop: Arc<AtomicBool>) {
    let group = feed.shards.first().map_or(SweepGroup(0), |s| s.sweep_group);
    while !stop.load(Ordering::Relaxed) {
        away(store.sweep(group).await);
        pause(&mut rng, 3000).await;
    }
}

async fn follow(
    store: &dyn Store,
    mut following: Following,
    speed: usize,
    pace: Duration,
    mut rng: Rng,
    stop: &AtomicBool,
) -> Following {
    while !stop.load(Ordering::Relaxed) {
        let limit = rng.usize(1..=20 * (speed + 1));
        away(following.step(store, limit).await);
        pause(&mut rng, 1000 * (1 + 10 * speed as u64)).await;
        keep_pace(&mut rng, pace).await;
    }
    following
}

/// The only error that may happen: the database is away, because somebody restarts it.
fn away<T>(outcome: changefeed_core::Result<T>) {
    if let Err(error) = outcome {
        assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    }
}

/// Up to so many microseconds, often none at all.
async fn pause(rng: &mut Rng, most: u64) {
    match rng.u8(..4) {
        0 => {}
        1 => tokio::task::yield_now().await,
        _ => tokio::time::sleep(Duration::from_micros(rng.u64(..=most))).await,
    }
}

/// A pause of this length on average.
async fn keep_pace(rng: &mut Rng, pace: Duration) {
    if !pace.is_zero() {
        tokio::time::sleep(pace.mul_f64(2.0 * rng.f64())).await;
    }
}

struct Writer {
    name: String,
    backend: Arc<dyn Backend>,
    recorder: Recorder,
    feed: Feed,
    rng: Rng,
    own_ids: bool,
    captured: Option<&'static str>,
}

/// What a transaction does in the end.
#[derive(Debug, Clone, Copy)]
enum End {
    Commit,
    Rollback,
    /// The connection breaks before a commit is sent.
    KillBefore,
    /// The connection breaks about when the commit is sent.
    KillAt,
    /// Two-phase commit, finished by another session.
    Prepare,
    PrepareAndRollback,
}

impl Writer {
    /// One transaction, from connecting to the end.
    async fn transaction(&mut self) {
        let session = eventually("a connection", || async {
            self.backend.try_session().await.ok()
        })
        .await;
        // A few on the same connection, as pools have it.
        for _ in 0..self.rng.usize(1..6) {
            let end = self.choose_end();
            let words = self.backend.words();
            let mut writing = self.recorder.begin(&self.name);
            if session.execute(words.begin).await.is_err() {
                writing.rolled_back();
                return;
            }
            if self.body(&*session, &mut writing).await.is_err() {
                // Cut off, or refused: no commit was sent.
                let _ = session.execute("rollback").await;
                writing.rolled_back();
                return;
            }
            match end {
                End::Commit => match session.execute("commit").await {
                    Ok(()) => writing.committed(),
                    Err(error) if error.connection_lost => return writing.in_doubt(),
                    Err(_) => {
                        let _ = session.execute("rollback").await;
                        return writing.rolled_back();
                    }
                },
                End::Rollback => {
                    let _ = session.execute("rollback").await;
                    writing.rolled_back();
                }
                End::KillBefore => {
                    session.kill().await;
                    return writing.rolled_back();
                }
                End::KillAt => {
                    let soon = Duration::from_micros(self.rng.u64(..600));
                    match tokio::time::timeout(soon, session.execute("commit")).await {
                        Ok(Ok(())) => writing.committed(),
                        _ => {
                            session.kill().await;
                            return writing.in_doubt();
                        }
                    }
                }
                End::Prepare | End::PrepareAndRollback => {
                    return self.two_phases(&*session, writing, end).await;
                }
            }
        }
    }

    fn choose_end(&mut self) -> End {
        match self.rng.u8(..100) {
            0..62 => End::Commit,
            62..80 => End::Rollback,
            80..86 => End::KillBefore,
            86..92 => End::KillAt,
            _ if !self.backend.words().two_phase => End::Commit,
            92..97 => End::Prepare,
            _ => End::PrepareAndRollback,
        }
    }

    /// Several inserts, some of them inside savepoints, some of those taken back.
    async fn body(
        &mut self,
        session: &dyn Session,
        writing: &mut super::Writing,
    ) -> Result<(), SqlError> {
        for _ in 0..self.rng.usize(1..4) {
            if self.rng.u8(..4) > 0 {
                self.publish(session, writing).await?;
                continue;
            }
            let mark = writing.mark();
            session.execute("savepoint s").await?;
            for _ in 0..self.rng.usize(1..3) {
                self.publish(session, writing).await?;
            }
            if self.rng.bool() {
                session.execute("rollback to savepoint s").await?;
                writing.take_back(mark);
            }
            session.execute("release savepoint s").await?;
        }
        Ok(())
    }

    async fn publish(
        &mut self,
        session: &dyn Session,
        writing: &mut super::Writing,
    ) -> Result<(), SqlError> {
        let words = self.backend.words();
        let shard: ShardId = self.rng.choice(&self.feed.shards).unwrap().shard;
        let id = if words.draws_are_final && !self.own_ids && self.captured.is_none() {
            let rows = session.query(words.draw_change_id).await?;
            let id = rows.first().and_then(|row| row[0].as_ref()?.parse().ok());
            id.unwrap()
        } else {
            // The checker tells transactions apart by ids, so none may be used twice.
            static OWN_IDS: AtomicI64 = AtomicI64::new(1);
            OWN_IDS.fetch_add(1, Ordering::Relaxed)
        };
        pause(&mut self.rng, 2000).await;
        writing.change((self.feed.id.0, shard.0), id);
        let sql = match self.captured {
            Some(table) => format!("insert into {table} (id) values ({id})"),
            None => words.publish(self.feed.id.0, shard.0, id),
        };
        session.execute(&sql).await?;
        pause(&mut self.rng, 1000).await;
        Ok(())
    }

    async fn two_phases(&mut self, session: &dyn Session, writing: super::Writing, end: End) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let gid = format!(
            "{}-{}-{}",
            self.name,
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let prepare = format!("prepare transaction '{gid}'");
        match session.execute(&prepare).await {
            Ok(()) => {}
            Err(error) if error.connection_lost => return writing.in_doubt(),
            Err(_) => return writing.rolled_back(),
        }
        pause(&mut self.rng, 20_000).await;
        let Ok(other) = self.backend.try_session().await else {
            return writing.in_doubt();
        };
        let (word, committed) = match end {
            End::Prepare => ("commit", true),
            _ => ("rollback", false),
        };
        match other.execute(&format!("{word} prepared '{gid}'")).await {
            Ok(()) if committed => writing.committed(),
            Ok(()) => writing.rolled_back(),
            Err(_) => writing.in_doubt(),
        }
    }
}
