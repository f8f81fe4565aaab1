//! Writing a history down while it happens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use changefeed_core::{
    After, Change, Content, Cursor, Error, Feed, FeedStore, Kind, Page, Result, ShardId, Source,
};
use serde_json::Value;

use super::{History, Moment, Outcome, PageRead, ShardKey, Transaction};

/// Shared by all writers and readers of a run.
#[derive(Debug, Clone)]
pub struct Recorder {
    origin: Instant,
    history: Arc<Mutex<History>>,
}

impl Recorder {
    /// A new history of shards that promise gapless numbers after these.
    pub fn new(start: BTreeMap<ShardKey, i64>) -> Self {
        Recorder {
            origin: Instant::now(),
            history: Arc::new(Mutex::new(History {
                start,
                ..History::default()
            })),
        }
    }

    /// Call before a BEGIN is sent.
    pub fn begin(&self, writer: &str) -> Writing {
        Writing {
            recorder: self.clone(),
            transaction: Transaction {
                writer: writer.to_owned(),
                changes: Vec::new(),
                taken_back: Vec::new(),
                began: self.now(),
                ended: Moment::MAX,
                outcome: Outcome::InDoubt,
            },
        }
    }

    /// Notes a page.
    pub fn page(&self, page: PageRead) {
        self.with(|history| history.pages.push(page));
    }

    /// Whether any reader has got a change so far.
    pub fn anything_read(&self) -> bool {
        self.with(|history| history.pages.iter().any(|page| !page.changes.is_empty()))
    }

    /// Notes that a reader has read on until there was nothing more, after all was quiet.
    pub fn finished(&self, reader: &str, shard: ShardKey) {
        self.with(|history| history.finished_readers.push((reader.to_owned(), shard)));
    }

    /// Notes all numbers of a shard, after all was quiet.
    pub fn table(&self, shard: ShardKey, rows: Vec<(i64, i64)>) {
        self.with(|history| history.table.insert(shard, rows));
    }

    /// How many transactions ended in each way: committed, rolled back, in doubt.
    pub fn outcomes(&self) -> (usize, usize, usize) {
        self.with(|history| {
            let count = |outcome| {
                history
                    .transactions
                    .iter()
                    .filter(|t| t.outcome == outcome)
                    .count()
            };
            (
                count(Outcome::Committed),
                count(Outcome::RolledBack),
                count(Outcome::InDoubt),
            )
        })
    }

    /// What was recorded so far.
    pub fn history(&self) -> History {
        self.with(|history| history.clone())
    }

    fn now(&self) -> Moment {
        Moment::try_from(self.origin.elapsed().as_nanos()).unwrap_or(Moment::MAX)
    }

    fn with<T>(&self, act: impl FnOnce(&mut History) -> T) -> T {
        act(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A transaction that is being written. Unless its end is told, it is in doubt.
#[derive(Debug)]
pub struct Writing {
    recorder: Recorder,
    transaction: Transaction,
}

impl Writing {
    /// Call for each change, before or after its insert.
    pub fn change(&mut self, shard: ShardKey, change_id: i64) {
        self.transaction.changes.push((shard, change_id));
    }

    /// How many changes there are: what a savepoint remembers.
    pub fn mark(&self) -> usize {
        self.transaction.changes.len()
    }

    /// The changes since a mark were taken back by a rollback to a savepoint.
    pub fn take_back(&mut self, mark: usize) {
        let back = self.transaction.changes.split_off(mark);
        self.transaction.taken_back.extend(back);
    }

    /// The commit was confirmed.
    pub fn committed(mut self) {
        self.transaction.outcome = Outcome::Committed;
    }

    /// It was rolled back, or cut off before a commit was sent.
    pub fn rolled_back(mut self) {
        self.transaction.outcome = Outcome::RolledBack;
    }

    /// The commit was sent and not answered.
    pub fn in_doubt(self) {}
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.transaction.ended = self.recorder.now();
        let transaction = self.transaction.clone();
        self.recorder
            .with(|history| history.transactions.push(transaction));
    }
}

/// A reader that writes down what it gets.
#[derive(Debug)]
pub struct Following {
    recorder: Recorder,
    reader: String,
    feed: Feed,
    shard: ShardId,
    after: After,
}

impl Following {
    /// A reader from the beginning of a shard.
    pub fn new(recorder: &Recorder, reader: &str, feed: &Feed, shard: ShardId) -> Self {
        Following {
            recorder: recorder.clone(),
            reader: reader.to_owned(),
            feed: feed.clone(),
            shard,
            after: After::First,
        }
    }

    /// Reads the next page; returns how many changes were on it.
    pub async fn step(&mut self, store: &(impl FeedStore + ?Sized), limit: usize) -> Result<usize> {
        let page = store
            .read(&self.feed, self.shard, self.after, limit)
            .await?;
        let count = page.changes.len();
        self.note(limit, &page)?;
        Ok(count)
    }

    /// Reads on until there is nothing more.
    pub async fn finish(&mut self, store: &(impl FeedStore + ?Sized)) -> Result<()> {
        while self.step(store, 1000).await? > 0 {}
        self.recorder.finished(&self.reader, self.key());
        Ok(())
    }

    fn key(&self) -> ShardKey {
        (self.feed.id.0, self.shard.0)
    }

    fn note(&mut self, limit: usize, page: &Page) -> Result<()> {
        let identified = page
            .changes
            .iter()
            .map(|change| Ok((number(change.cursor)?, identity(&self.feed, change)?)));
        self.recorder.page(PageRead {
            reader: self.reader.clone(),
            shard: self.key(),
            after: match self.after {
                After::Cursor(cursor) => Some(number(cursor)?),
                _ => None,
            },
            limit,
            changes: identified.collect::<Result<_>>()?,
            next: number(page.next)?,
        });
        self.after = After::Cursor(page.next);
        Ok(())
    }
}

fn number(cursor: Cursor) -> Result<i64> {
    cursor.number().ok_or_else(|| unexpected("a number"))
}

fn unexpected(what: &str) -> Error {
    Error::new(Kind::Database, format!("a change without {what} was read"))
}

/// What tells a change from all others of its feed: the change id that its writer chose, or in a
/// captured feed, whose change ids the database draws, the `id` of the row that was inserted.
pub fn identity(feed: &Feed, change: &Change) -> Result<i64> {
    let id = match (&feed.source, &change.content) {
        (Some(Source::Captured { .. }), Content::Row(row)) => {
            let row: Option<Value> = serde_json::from_str(row.get()).ok();
            row.and_then(|row| row["id"].as_i64())
        }
        _ => change.change_id,
    };
    id.ok_or_else(|| unexpected("an id"))
}
