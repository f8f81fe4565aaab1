//! A history: writers that commit, roll back and take back, sweepers and readers beside them, and ULID transactions; all of
//! it written down, and judged by checkers that know nothing of the store.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use changefeed::{Backend, Error, Kind, Result};
use changefeed_core::{
    After, Cursor, Feed, NewFeed, ShardId, Source, Store, TableName, Ulid, Uuid,
};
use fastrand::Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cases::{drawn, publish, settle};
use crate::history::ulids::{self, Fate, Written};
use crate::history::{Following, Recorder, Writing, check, identity};
use crate::place::{Place, Session};
use crate::report::HistoryReport;

const WRITERS: usize = 8;
const SWEEPERS: usize = 2;
const READERS: usize = 2;
const ULID_WRITERS: usize = 3;
const SHARDS: i16 = 2;
/// The feed of the ULID transactions.
const ULIDS: Uuid = Uuid::from_u128(0x8027_0756_deeb_11ed_91f2_4f03_a365_d3f8);
/// More of them are not worth a report.
const SHOWN: usize = 20;

type Stop = watch::Receiver<bool>;
/// A reader, with a store of its own.
type Reader = (Arc<dyn Store>, Following);

/// Makes a history of this length and judges it.
pub(crate) async fn run(
    place: &Arc<dyn Place>,
    store: &Arc<dyn Store>,
    duration: Duration,
) -> Result<HistoryReport> {
    let feed = store
        .create_feed(&NewFeed {
            shards: SHARDS,
            ..NewFeed::new("certify-history".parse()?)
        })
        .await?;
    let start = (0..SHARDS).map(|shard| ((feed.id.0, shard), changefeed_core::DEFAULT_START));
    let recorder = Recorder::new(start.collect());
    let (stopping, stop) = watch::channel(false);
    let began = Instant::now();
    let mut others: JoinSet<Result<Option<Reader>>> = JoinSet::new();
    if store.needs_sweeping() {
        for _ in 0..SWEEPERS {
            let (store, feed, stop) = (another(place).await?, feed.clone(), stop.clone());
            others.spawn(async move { sweep(&store, &feed, &stop).await.map(|()| None) });
        }
    }
    for shard in 0..SHARDS {
        for reader in 0..READERS {
            let name = format!("reader-{shard}-{reader}");
            let mut following = Following::new(&recorder, &name, &feed, ShardId(shard));
            let (store, stop) = (another(place).await?, stop.clone());
            others.spawn(async move {
                let mut rng = Rng::new();
                while !*stop.borrow() {
                    following.step(&*store, rng.usize(1..=40)).await?;
                    pause(&mut rng, 3000).await;
                }
                Ok(Some((store, following)))
            });
        }
    }
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let writer = Writer {
            name: format!("writer-{number}"),
            place: place.clone(),
            recorder: recorder.clone(),
            feed: feed.clone(),
            rng: Rng::new(),
        };
        writers.spawn(writer.write_until(began + duration));
    }
    let (written, of_ulids) = tokio::join!(
        async {
            while let Some(ended) = writers.join_next().await {
                ended.map_err(cut_off)??;
            }
            Ok::<_, Error>(())
        },
        write_ulids(place, store, began + duration)
    );
    // Whoever wakes up from this ends.
    stopping.send_replace(true);
    written?;
    let (ulid_transactions, mut violations) = of_ulids?;
    let mut readers = Vec::new();
    while let Some(ended) = others.join_next().await {
        readers.extend(ended.map_err(cut_off)??);
    }
    settle(store, &feed).await?;
    for (store, mut following) in readers {
        following.finish(&*store).await?;
    }
    for shard in 0..SHARDS {
        recorder.table((feed.id.0, shard), all(store, &feed, shard).await?);
    }
    let history = recorder.history();
    violations.extend(check(&history).iter().map(ToString::to_string));
    let (committed, rolled_back, _) = recorder.outcomes();
    let total = violations.len();
    violations.truncate(SHOWN);
    if total > SHOWN {
        violations.push(format!("and {} more", total - SHOWN));
    }
    Ok(HistoryReport {
        seconds: began.elapsed().as_secs_f64(),
        committed,
        rolled_back,
        changes: history.table.values().map(Vec::len).sum(),
        pages: history.pages.len(),
        ulid_transactions,
        latency_ms: latency(place, store, &feed).await?,
        violations,
    })
}

/// A store as another process would have it.
async fn another(place: &Arc<dyn Place>) -> Result<Arc<dyn Store>> {
    Backend::parse(place.url())?.open().await
}

fn cut_off(error: tokio::task::JoinError) -> Error {
    Error::new(Kind::Database, "a part of the history broke off").caused_by(error)
}

async fn sweep(store: &Arc<dyn Store>, feed: &Feed, stop: &Stop) -> Result<()> {
    let mut rng = Rng::new();
    let group = feed.shards.first().map(|shard| shard.sweep_group);
    while !*stop.borrow() {
        store.sweep(group.unwrap_or_default()).await?;
        pause(&mut rng, 3000).await;
    }
    Ok(())
}

/// Up to so many microseconds, sometimes none.
async fn pause(rng: &mut Rng, most: u64) {
    match rng.bool() {
        true => tokio::task::yield_now().await,
        false => tokio::time::sleep(Duration::from_micros(rng.u64(..=most))).await,
    }
}

/// Number and identity of a whole shard.
async fn all(store: &Arc<dyn Store>, feed: &Feed, shard: i16) -> Result<Vec<(i64, i64)>> {
    let (mut after, mut all) = (After::First, Vec::new());
    loop {
        let page = store.read(feed, ShardId(shard), after, 1000).await?;
        if page.changes.is_empty() {
            return Ok(all);
        }
        for change in &page.changes {
            let number = change.cursor.number().unwrap_or_default();
            all.push((number, identity(feed, change)?));
        }
        after = After::Cursor(page.next);
    }
}

struct Writer {
    name: String,
    place: Arc<dyn Place>,
    recorder: Recorder,
    feed: Feed,
    rng: Rng,
}

impl Writer {
    async fn write_until(mut self, end: Instant) -> Result<()> {
        let session = self.place.session().await?;
        // At least once, however long the first connection took.
        loop {
            self.transaction(&*session).await?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }

    async fn transaction(&mut self, session: &dyn Session) -> Result<()> {
        let mut writing = self.recorder.begin(&self.name);
        session.run(self.place.words().begin).await?;
        for _ in 0..self.rng.usize(1..4) {
            self.publish(session, &mut writing).await?;
            if self.rng.u8(..4) == 0 {
                let mark = writing.mark();
                session.run(self.place.words().savepoint).await?;
                self.publish(session, &mut writing).await?;
                session.run(self.place.words().rollback_to).await?;
                writing.take_back(mark);
            }
        }
        pause(&mut self.rng, 5000).await;
        match self.rng.u8(..4) {
            0 => {
                session.run("rollback").await?;
                writing.rolled_back();
            }
            _ => {
                session.run("commit").await?;
                writing.committed();
            }
        }
        Ok(())
    }

    async fn publish(&mut self, session: &dyn Session, writing: &mut Writing) -> Result<()> {
        let shard = self.rng.i16(0..SHARDS);
        let id = match self.place.words().draws_are_final {
            true => drawn(&self.place, session).await?,
            // One that a rollback gives back would be given to somebody else.
            false => self.rng.i64(1 << 40..1 << 60),
        };
        writing.change((self.feed.id.0, shard), id);
        session
            .run(&publish(&self.place, &self.feed, shard, id))
            .await
    }
}

/// Writers of one shard take turns, and a reader sees their ULIDs grow. Returns how many were committed, and what
/// the checker says.
async fn write_ulids(
    place: &Arc<dyn Place>,
    store: &Arc<dyn Store>,
    end: Instant,
) -> Result<(usize, Vec<String>)> {
    let Some(begin) = place.words().begin_ulids else {
        return Ok((0, Vec::new()));
    };
    let words = place.words();
    let admin = place.session().await?;
    admin
        .run(&format!(
            "create table event (shard int not null, ulid {} not null, note {} not null, primary key (shard, ulid))",
            words.ulid, words.text
        ))
        .await?;
    let feed = store
        .create_feed(&NewFeed {
            source: Some(Source::Ulid {
                feed: ULIDS,
                table: TableName::unqualified("event"),
                shard_column: "shard".to_owned(),
                ulid_column: "ulid".to_owned(),
            }),
            ..NewFeed::new("certify-ulids".parse()?)
        })
        .await?;
    let begin = begin.replace("{feed}", &ULIDS.to_string());
    let mut writers = JoinSet::new();
    for number in 0..ULID_WRITERS {
        let (place, begin) = (place.clone(), begin.clone());
        writers.spawn(async move {
            let session = place.session().await?;
            let (mut done, mut rng): (Vec<Written>, _) = (Vec::new(), Rng::new());
            while done.is_empty() || Instant::now() < end {
                let name = format!("w{number}-{}", done.len());
                let (size, began) = (rng.usize(1..4), now());
                session.run(&begin).await?;
                for row in 0..size {
                    let note = format!("{name}/{size}/{row}");
                    let write = place.words().write_ulid.replace("{note}", &note);
                    session.run(&write).await?;
                }
                let fate = match rng.u8(..5) {
                    0 => Fate::Undone,
                    _ => Fate::Committed,
                };
                let end_it = match fate {
                    Fate::Committed => place.words().commit_ulids,
                    _ => "rollback",
                };
                session.run(end_it).await?;
                done.push(Written {
                    name,
                    size,
                    fate,
                    began,
                    ended: now(),
                });
            }
            Ok::<_, Error>(done)
        });
    }
    let mut reader = UlidReader::new(&feed);
    let mut written = Vec::new();
    loop {
        tokio::select! {
            ended = writers.join_next() => match ended {
                Some(ended) => written.extend(ended.map_err(cut_off)??),
                None => break,
            },
            () = tokio::time::sleep(Duration::from_millis(5)) => {
                reader.step(store).await?;
            }
        }
    }
    while reader.step(store).await? > 0 {}
    let mut again = UlidReader::new(&feed);
    while again.step(store).await? > 0 {}
    let found = ulids::check(&again.rows, &written, &[reader.ulids()], |_| false);
    let committed = written.iter().filter(|w| w.fate == Fate::Committed).count();
    Ok((committed, found))
}

/// Microseconds since 1970.
fn now() -> u128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_micros()
}

/// Pages through the table of the ULID transactions.
struct UlidReader {
    feed: Feed,
    after: After,
    rows: Vec<(Ulid, String)>,
}

impl UlidReader {
    fn new(feed: &Feed) -> Self {
        UlidReader {
            feed: feed.clone(),
            after: After::First,
            rows: Vec::new(),
        }
    }

    async fn step(&mut self, store: &Arc<dyn Store>) -> Result<usize> {
        let page = store.read(&self.feed, ShardId(0), self.after, 500).await?;
        for change in &page.changes {
            let note = match &change.content {
                changefeed_core::Content::Row(row) => {
                    let row: Option<serde_json::Value> = serde_json::from_str(row.get()).ok();
                    row.and_then(|row| row["note"].as_str().map(str::to_owned))
                }
                _ => None,
            };
            if let Cursor::Ulid(ulid) = change.cursor {
                self.rows.push((ulid, note.unwrap_or_default()));
            }
        }
        self.after = page.go_on(self.after);
        Ok(page.changes.len())
    }

    fn ulids(&self) -> Vec<Ulid> {
        self.rows.iter().map(|(ulid, _)| *ulid).collect()
    }
}

/// From a confirmed commit until a reader has the change, with nothing else going on.
async fn latency(
    place: &Arc<dyn Place>,
    store: &Arc<dyn Store>,
    feed: &Feed,
) -> Result<Option<(f64, f64)>> {
    let session = place.session().await?;
    let mut rng = Rng::new();
    let mut after = After::Last;
    let mut took = Vec::new();
    for _ in 0..=100 {
        let page = store.read(feed, ShardId(0), after, 100).await?;
        after = After::Cursor(page.next);
        let id = rng.i64(1 << 40..1 << 60);
        session.run(&publish(place, feed, 0, id)).await?;
        let committed = Instant::now();
        settle(store, feed).await?;
        let page = store.read(feed, ShardId(0), after, 100).await?;
        if page.changes.is_empty() {
            return Err(Error::new(
                Kind::Database,
                "a change that was committed and swept was not read",
            ));
        }
        took.push(committed.elapsed().as_secs_f64() * 1000.0);
    }
    // The first one pays for what is done once.
    took.remove(0);
    took.sort_by(f64::total_cmp);
    Ok(took.get(took.len() / 2).copied().zip(took.last().copied()))
}
