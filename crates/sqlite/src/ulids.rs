//! ULID transactions.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use changefeed_core::{
    Error, Kind, Result, Ulid, UlidCounter, UlidCounters, UlidOptions, UlidShard, UlidState, Uuid,
    crash_point, require_current,
};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};

use crate::error::{Explain, explain};
use crate::schema;

/// A transaction whose ULIDs are increasing for every observer of its shards; [`begin_ulid`] begins
/// one.
///
/// It dereferences to the driver's own transaction. Dropping it rolls back and frees the file.
#[derive(Debug)]
pub struct UlidTransaction<'c> {
    transaction: Transaction<'c>,
    counters: UlidCounters,
    options: UlidOptions,
}

/// Begins a ULID transaction on a connection of the application. Blocks, as everything here does,
/// while others write: at most for `options.wait`, then it fails with [`Kind::Busy`].
///
/// SQLite has one writer at a time, so the lock of a ULID transaction is that of the file: writers
/// of other shards, and those who have nothing to do with ULIDs, queue for it too. That is also what
/// makes the ULIDs increase, and it differs from other databases in what becomes of a holder that
/// is lost:
///
/// - A process that *dies*, by `kill -9` too, frees the file at once. Nobody waits for a timeout,
///   nothing has to be burned, no incident is ever counted, and `options.timeout` has no meaning.
/// - A process that is *stopped* (`SIGSTOP`, a debugger, a suspended virtual machine), or that
///   simply computes between two statements, holds the file until it goes on or is killed. Others
///   get [`Kind::Busy`] after their wait. Nothing can be done about that from outside.
///
/// The connection's busy timeout is put back once the transaction has begun; a busy handler that is
/// a function of the application's own is replaced by none. Connections from
/// [`SqliteStore::connection`](crate::SqliteStore::connection) use `synchronous=FULL`; with less, a
/// power cut may take back commits that readers have already seen.
///
/// ```
/// use changefeed_core::{After, FeedStore, NewFeed, SchemaStore, ShardId, Source, TableName};
/// use changefeed_core::{Cursor, UlidOptions, Uuid};
/// use changefeed_sqlite::{SqliteStore, begin_ulid};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// const EVENTS: Uuid = Uuid::from_u128(0x80270756_deeb_11ed_91f2_4f03a365d3f8);
///
/// let store = SqliteStore::open(dir.path().join("app.db")).await?;
/// store.migrate().await?;
/// let mut app = store.connection()?;
/// app.execute_batch(
///     "create table event (shard integer, ulid blob, note text, primary key (shard, ulid))",
/// )?;
///
/// let mut transaction = begin_ulid(&mut app, &UlidOptions::new(EVENTS, 0))?;
/// let ulid = transaction.next_ulid()?;
/// transaction.execute("insert into event values (0, ?1, 'hello')", [ulid.to_bytes()])?;
/// transaction.commit()?;
///
/// let source = Source::Ulid {
///     feed: EVENTS,
///     table: TableName::unqualified("event"),
///     shard_column: "shard".to_owned(),
///     ulid_column: "ulid".to_owned(),
/// };
/// let new = NewFeed { source: Some(source), ..NewFeed::new("events".parse()?) };
/// let feed = store.create_feed(&new).await?;
/// let page = store.read(&feed, ShardId(0), After::First, 100).await?;
/// assert_eq!(page.changes[0].cursor, Cursor::Ulid(ulid));
/// # Ok(())
/// # }
/// ```
pub fn begin_ulid<'c>(
    connection: &'c mut Connection,
    options: &UlidOptions,
) -> Result<UlidTransaction<'c>> {
    options.validate()?;
    if !connection.is_autocommit() {
        return Err(Error::invalid(
            "this connection is in a transaction already; a ULID transaction begins its own",
        ));
    }
    let transaction = lock(connection, options)?;
    let mut begun = Vec::new();
    for pair in options.shards() {
        let state = enter(&transaction, pair, options)
            // Nothing of ours there is the most likely reason.
            .map_err(
                |error| match schema::state(&transaction).and_then(require_current) {
                    Ok(()) => error,
                    Err(other) => other,
                },
            )?;
        begun.push((pair, state));
    }
    Ok(UlidTransaction {
        transaction,
        counters: UlidCounters::new(begun),
        options: options.clone(),
    })
}

/// Takes the file's write lock: everything after it sees what all earlier writers have committed.
fn lock<'c>(connection: &'c mut Connection, options: &UlidOptions) -> Result<Transaction<'c>> {
    let before: i64 = connection
        .prepare_cached("pragma busy_timeout")
        .and_then(|mut s| s.query_row([], |row| row.get(0)))
        .explained()?;
    connection
        .busy_timeout(bearable(options.wait))
        .explained()?;
    let before = Duration::from_millis(before.max(0).cast_unsigned());
    match Transaction::new_unchecked(connection, TransactionBehavior::Immediate) {
        Ok(transaction) => {
            transaction.busy_timeout(before).explained()?;
            Ok(transaction)
        }
        Err(error) => {
            connection.busy_timeout(before).explained()?;
            if error.sqlite_error_code() != Some(ErrorCode::DatabaseBusy) {
                return Err(explain(error));
            }
            Err(Error::new(
                Kind::Busy,
                format!(
                    "feed {} shard {} is busy: others have held the database's write lock for {} \
                     ms",
                    options.feed,
                    options.shard,
                    options.wait.as_millis()
                ),
            )
            .advise(
                "try again; if it stays so, look for a transaction that was left open, or a \
                 process that was stopped",
            )
            .caused_by(error))
        }
    }
}

/// The driver refuses more milliseconds than fit 31 bits.
fn bearable(wait: Duration) -> Duration {
    wait.min(Duration::from_millis(i32::MAX.unsigned_abs().into()))
}

/// Reads where the shard stands and reserves as many ULIDs as one transaction may give. So a
/// `COMMIT` by SQL, past [`UlidTransaction::commit`], leaves a state that is behind all of them.
fn enter(transaction: &Connection, pair: UlidShard, options: &UlidOptions) -> Result<UlidState> {
    let feed = pair.feed.to_string();
    let (now, random, before, ahead) = transaction
        .prepare_cached(include_str!("sql/ulid_begin.sql"))
        .and_then(|mut s| {
            s.query_row(params![feed, pair.shard], |row| {
                let before = match row.get::<_, Option<i64>>(2)? {
                    None => None,
                    Some(time) => Some(UlidState {
                        time: time.cast_unsigned(),
                        high: u64::from_be_bytes(row.get(3)?),
                        low: row.get::<_, i64>(4)?.cast_unsigned(),
                    }),
                };
                let ahead = row.get::<_, Option<i64>>(5)?.unwrap_or_default();
                Ok((row.get::<_, i64>(0)?, row.get(1)?, before, ahead))
            })
        })
        .explained()?;
    let now = options.time(now.max(0).cast_unsigned(), ahead.max(0).cast_unsigned())?;
    let begin = UlidState::begin(before, now, random)?;
    let reserved = begin.after(UlidCounter::MAX);
    transaction
        .prepare_cached(include_str!("sql/ulid_reserve.sql"))
        .and_then(|mut s| {
            s.execute(params![
                feed,
                pair.shard,
                reserved.time.cast_signed(),
                reserved.high.to_be_bytes(),
                reserved.low.cast_signed()
            ])
        })
        .explained()?;
    Ok(begin)
}

impl UlidTransaction<'_> {
    /// The next ULID, in a transaction that writes to one shard.
    pub fn next_ulid(&mut self) -> Result<Ulid> {
        self.check_open()?;
        self.counters.only()?.take_one()
    }

    /// The next `count` ULIDs, in order, in a transaction that writes to one shard.
    pub fn ulids(&mut self, count: u64) -> Result<impl Iterator<Item = Ulid> + use<>> {
        self.check_open()?;
        self.counters.only()?.take(count)
    }

    /// The next ULID of a shard.
    pub fn next_ulid_of(&mut self, feed: Uuid, shard: i32) -> Result<Ulid> {
        self.check_open()?;
        self.counters.of(feed, shard)?.take_one()
    }

    /// The next `count` ULIDs of a shard, in order.
    pub fn ulids_of(
        &mut self,
        feed: Uuid,
        shard: i32,
        count: u64,
    ) -> Result<impl Iterator<Item = Ulid> + use<>> {
        self.check_open()?;
        self.counters.of(feed, shard)?.take(count)
    }

    /// Adds a shard, behind all shards that the transaction has, in their order. The file has one lock, so nobody is
    /// waited for; the order is that of other databases, so that a program behaves the same on all of them.
    pub fn add(&mut self, feed: Uuid, shard: i32) -> Result<()> {
        self.check_open()?;
        let pair = UlidShard { feed, shard };
        self.counters.may_add(pair)?;
        let state = enter(&self.transaction, pair, &self.options)?;
        self.counters.add(pair, state);
        Ok(())
    }

    /// When this transaction happens, in milliseconds since 1970: the larger of the clock, or the
    /// time hint, and the time of the newest ULID of its shards.
    pub fn time(&self) -> u64 {
        self.counters.time()
    }

    /// Writes where the shards stand now, and commits. Fails with [`Kind::Busy`], and rolls back, if
    /// the state of one is not what this transaction made it: it was ended and begun again by SQL,
    /// and others have written meanwhile.
    pub fn commit(self) -> Result<()> {
        crash_point("ulid.commit");
        self.check_open()?;
        for (pair, counter) in self.counters.all() {
            let (from, to) = (counter.reserved(), counter.after());
            let moved = self
                .transaction
                .prepare_cached(include_str!("sql/ulid_commit.sql"))
                .and_then(|mut s| {
                    s.execute(params![
                        pair.feed.to_string(),
                        pair.shard,
                        from.time.cast_signed(),
                        from.high.to_be_bytes(),
                        from.low.cast_signed(),
                        to.low.cast_signed()
                    ])
                })
                .explained()?;
            if moved != 1 {
                return Err(Error::new(
                    Kind::Busy,
                    format!("{pair} was moved by another writer: this transaction cannot commit"),
                )
                .advise("do the transaction again"));
            }
        }
        self.transaction.commit().explained()
    }

    /// Rolls back and frees the file. Nobody has seen its ULIDs, so they may be given again.
    pub fn rollback(self) -> Result<()> {
        if self.transaction.is_autocommit() {
            return Ok(());
        }
        self.transaction.rollback().explained()
    }

    /// SQL can end the transaction behind our back, and so does SQLite itself after some errors:
    /// what is written then belongs to no transaction.
    fn check_open(&self) -> Result<()> {
        if self.transaction.is_autocommit() {
            return Err(Error::invalid(
                "this ULID transaction was ended by SQL, or by SQLite after an error",
            )
            .advise("end it with commit() or rollback() only"));
        }
        Ok(())
    }
}

impl<'c> Deref for UlidTransaction<'c> {
    type Target = Transaction<'c>;

    fn deref(&self) -> &Transaction<'c> {
        &self.transaction
    }
}

/// For savepoints.
impl<'c> DerefMut for UlidTransaction<'c> {
    fn deref_mut(&mut self) -> &mut Transaction<'c> {
        &mut self.transaction
    }
}
