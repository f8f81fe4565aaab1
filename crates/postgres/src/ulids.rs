//! ULID transactions for clients; `migrations/0001/ulid_locks.sql` explains them.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use changefeed_core::{
    Error, Kind, Result, Ulid, UlidCounters, UlidOptions, UlidShard, UlidState, Uuid, crash_point,
};
use deadpool_postgres::Object;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::error::DbError;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, IsolationLevel};

use crate::PostgresStore;
use crate::error::{db, ulid_code};
use crate::row::Cells;
use crate::session::Limit;

/// A transaction whose ULIDs are increasing for every observer of its shards.
///
/// It dereferences to the driver's client, on which every statement belongs to this transaction.
/// A background task shows the server that this process is alive, so that a transaction which
/// computes for long is not judged dead. Dropping it rolls back and frees the shard.
pub struct UlidTransaction {
    store: PostgresStore,
    session: Arc<Holder>,
    counters: UlidCounters,
    timeout: Duration,
    /// Whether its statements see what is committed by now; otherwise no shard can be added.
    sees_newest: bool,
    alive: AbortHandle,
}

impl std::fmt::Debug for UlidTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UlidTransaction")
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// What fits the server's milliseconds.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);

/// How long the server may take for something that it need not wait for anybody to do.
const NO_ANSWER: Duration = Duration::from_secs(30);

fn no_answer(what: &str) -> Error {
    Error::new(
        Kind::Unavailable,
        format!("the database did not answer the {what} of a ULID transaction"),
    )
    .advise("look whether its rows are there before you do it again")
}

/// A connection with an open transaction.
struct Holder {
    client: Option<Object>,
    ended: AtomicBool,
    /// What frees the lock where it belongs to the session and not to the transaction.
    unlock: Option<String>,
}

impl PostgresStore {
    /// Begins a ULID transaction: queues for its shards, and goes on by itself after an incident.
    pub async fn begin_ulid(&self, options: &UlidOptions) -> Result<UlidTransaction> {
        self.begin_ulid_with(options, IsolationLevel::ReadCommitted)
            .await
    }

    /// The same with another isolation level; the locks are taken before the transaction begins, so
    /// that its snapshot is not older than they are.
    pub async fn begin_ulid_with(
        &self,
        options: &UlidOptions,
        isolation: IsolationLevel,
    ) -> Result<UlidTransaction> {
        options.validate()?;
        // To wait for ever is to wait for the largest number of milliseconds.
        let deadline = Instant::now() + options.wait.min(LONGEST_WAIT);
        let pairs = Pairs::new(options.shards());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let begun = async {
                match isolation {
                    IsolationLevel::ReadCommitted | IsolationLevel::ReadUncommitted => {
                        self.try_begin(options, &pairs, left).await
                    }
                    other => self.try_begin_locked(options, &pairs, left, other).await,
                }
            };
            // A connection that does not answer is closed, and the server rolls back.
            let begun = tokio::time::timeout(left + NO_ANSWER, begun)
                .await
                .map_err(|_| no_answer("begin"))?;
            let error = match begun? {
                Ok((session, states)) => {
                    let counters = UlidCounters::new(pairs.shards.into_iter().zip(states));
                    return Ok(UlidTransaction::new(self, session, counters, options));
                }
                Err(error) => error,
            };
            if ulid_code(&error) != Some("CF001") || Instant::now() >= deadline {
                return Err(db(error));
            }
            // On another connection and outside of any transaction, so that the number survives and
            // is seen at once. Doing it is also the proof that this client lives.
            self.report_incident(&error, options.timeout).await?;
        }
    }

    /// Counts an incident of the shard that this error is about, if its holder is silent.
    async fn report_incident(
        &self,
        error: &tokio_postgres::Error,
        timeout: Duration,
    ) -> Result<()> {
        // Only of that one: the others were not waited for, and one look at their holders tells nothing.
        let Some((feed, shard)) = error
            .as_db_error()
            .and_then(DbError::detail)
            .and_then(|pair| pair.split_once('/'))
        else {
            return Ok(());
        };
        let (Ok(feed), Ok(shard)) = (feed.parse::<Uuid>(), shard.parse::<i32>()) else {
            return Ok(());
        };
        let timeout = milliseconds(timeout);
        let raised: bool = self
            .call(Limit::BRIEF, async |session| {
                let row = session
                    .query_one(
                        "select changefeed.report_incident($1, $2, $3)",
                        &[&feed, &shard, &timeout],
                    )
                    .await
                    .map_err(db)?;
                row.take(0)
            })
            .await?;
        if raised {
            tracing::warn!(%feed, shard, "a writer disappeared; its lock was burned");
        }
        Ok(())
    }

    /// One attempt; the inner error is the server's refusal.
    async fn try_begin(
        &self,
        options: &UlidOptions,
        pairs: &Pairs,
        wait: Duration,
    ) -> Result<Result<(Holder, Vec<UlidState>), tokio_postgres::Error>> {
        let client = self.inner.door.application(&self.inner.known).await?;
        let statement = client
            .prepare_cached(
                // The session has the path of its role, which may lead to anybody's operators.
                "select changefeed.ulid_begin($1, $2, $3, \
                 pg_catalog.timestamptz 'epoch' operator(pg_catalog.+) \
                 ($4 operator(pg_catalog.*) interval '1 millisecond'), $5)",
            )
            .await
            .map_err(db)?;
        let session = Holder {
            client: Some(client),
            ended: AtomicBool::new(false),
            unlock: None,
        };
        let (timeout, wait) = (milliseconds(options.timeout), milliseconds(wait));
        let hint = options.time_hint.map(|t| t as f64);
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&pairs.feed_ids, &pairs.shard_ids, &timeout, &hint, &wait];
        // Polled together, both travel in one round trip.
        let begun = tokio::try_join!(
            session.batch_execute("begin isolation level read committed"),
            session.query_one(&statement, &parameters),
        );
        match begun {
            Ok(((), row)) => {
                let states = states(&row)?;
                Ok(Ok((session, states)))
            }
            Err(error) => {
                session.end("rollback").await;
                Ok(Err(error))
            }
        }
    }

    /// One attempt that takes the locks for the session first.
    async fn try_begin_locked(
        &self,
        options: &UlidOptions,
        pairs: &Pairs,
        wait: Duration,
        isolation: IsolationLevel,
    ) -> Result<Result<(Holder, Vec<UlidState>), tokio_postgres::Error>> {
        let client = self.inner.door.application(&self.inner.known).await?;
        let mut session = Holder {
            client: Some(client),
            ended: AtomicBool::new(false),
            unlock: None,
        };
        let (timeout, wait) = (milliseconds(options.timeout), milliseconds(wait));
        let (feeds, shards) = (&pairs.feed_ids, &pairs.shard_ids);
        let both: [&(dyn ToSql + Sync); 2] = [feeds, shards];
        let lock: [&(dyn ToSql + Sync); 4] = [feeds, shards, &timeout, &wait];
        let locked = tokio::try_join!(
            session.execute("select changefeed.ulid_shards($1, $2)", &both),
            session.query_one(
                "select incidents, lock_keys from changefeed.ulid_lock_session($1, $2, $3, $4)",
                &lock,
            ),
        );
        let row = match locked {
            Ok((_, row)) => row,
            Err(error) => {
                // Whether a lock was taken is not known for sure: the session must not live on.
                session.discard();
                return Ok(Err(error));
            }
        };
        let (incidents, keys): (Vec<i64>, Vec<i64>) = (row.take(0)?, row.take(1)?);
        let unlock = |key| format!("select pg_catalog.pg_advisory_unlock({key})");
        let unlock: Vec<String> = keys.iter().map(unlock).collect();
        session.unlock = Some(unlock.join("; "));
        let level = match isolation {
            IsolationLevel::Serializable => "serializable",
            _ => "repeatable read",
        };
        let begin = format!("begin isolation level {level}");
        let hint = options.time_hint.map(|t| t as f64);
        let parameters: [&(dyn ToSql + Sync); 5] = [feeds, shards, &incidents, &timeout, &hint];
        let begun = tokio::try_join!(
            session.batch_execute(&begin),
            session.query_one(
                "select changefeed.ulid_begin_locked($1, $2, $3, $4, \
                 pg_catalog.timestamptz 'epoch' operator(pg_catalog.+) \
                 ($5 operator(pg_catalog.*) interval '1 millisecond'))",
                &parameters,
            ),
        );
        match begun {
            Ok(((), row)) => {
                let states = states(&row)?;
                Ok(Ok((session, states)))
            }
            Err(error) => {
                session.end("rollback").await;
                Ok(Err(error))
            }
        }
    }
}

/// The shards of a transaction, and the same as the server takes them.
struct Pairs {
    shards: Vec<UlidShard>,
    feed_ids: Vec<Uuid>,
    shard_ids: Vec<i32>,
}

impl Pairs {
    fn new(shards: Vec<UlidShard>) -> Self {
        Pairs {
            feed_ids: shards.iter().map(|pair| pair.feed).collect(),
            shard_ids: shards.iter().map(|pair| pair.shard).collect(),
            shards,
        }
    }
}

impl UlidTransaction {
    fn new(
        store: &PostgresStore,
        session: Holder,
        counters: UlidCounters,
        options: &UlidOptions,
    ) -> Self {
        let sees_newest = session.unlock.is_none();
        let session = Arc::new(session);
        let pulse = session.clone();
        let every = options.timeout / 4;
        let alive = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                // Any statement is a sign of life, also an empty one; it waits its turn behind one
                // that is running.
                if pulse.ended.load(Ordering::Acquire) || pulse.simple_query("").await.is_err() {
                    return;
                }
            }
        })
        .abort_handle();
        UlidTransaction {
            store: store.clone(),
            session,
            counters,
            timeout: options.timeout,
            sees_newest,
            alive,
        }
    }

    /// The next ULID, in a transaction that writes to one shard.
    pub fn next_ulid(&mut self) -> Result<Ulid> {
        self.counters.only()?.take_one()
    }

    /// The next `count` ULIDs, in order, in a transaction that writes to one shard.
    pub fn ulids(&mut self, count: u64) -> Result<impl Iterator<Item = Ulid> + use<>> {
        self.counters.only()?.take(count)
    }

    /// The next ULID of a shard.
    pub fn next_ulid_of(&mut self, feed: Uuid, shard: i32) -> Result<Ulid> {
        self.counters.of(feed, shard)?.take_one()
    }

    /// The next `count` ULIDs of a shard, in order.
    pub fn ulids_of(
        &mut self,
        feed: Uuid,
        shard: i32,
        count: u64,
    ) -> Result<impl Iterator<Item = Ulid> + use<>> {
        self.counters.of(feed, shard)?.take(count)
    }

    /// Adds a shard, waiting for it at most for so long. That is possible under read committed and behind all shards
    /// that the transaction has, in their order. A transaction to which no shard could be added is over: roll it back.
    pub async fn add(&mut self, feed: Uuid, shard: i32, wait: Duration) -> Result<()> {
        let new = UlidShard { feed, shard };
        self.counters.may_add(new)?;
        if !self.sees_newest {
            return Err(Error::invalid(format!(
                "{new} cannot be added: with this isolation level the snapshot is older than the lock would be"
            ))
            .advise("name all shards in the options that begin the transaction"));
        }
        let statement = self
            .prepare_cached("select changefeed.ulid_add($1, $2, $3, null, $4)")
            .await
            .map_err(db)?;
        let (timeout, wait) = (milliseconds(self.timeout), milliseconds(wait));
        let added = self
            .query_one(&statement, &[&feed, &shard, &timeout, &wait])
            .await;
        let row = match added {
            Ok(row) => row,
            Err(error) => {
                if ulid_code(&error) == Some("CF001") {
                    self.store.report_incident(&error, self.timeout).await?;
                }
                return Err(db(error));
            }
        };
        for state in states(&row)? {
            self.counters.add(new, state);
        }
        Ok(())
    }

    /// Prepares a statement, once per connection of the pool.
    pub async fn prepare_cached(
        &self,
        sql: &str,
    ) -> Result<tokio_postgres::Statement, tokio_postgres::Error> {
        match &self.session.client {
            Some(client) => client.prepare_cached(sql).await,
            None => self.prepare(sql).await,
        }
    }

    /// When this transaction happens, in milliseconds since 1970: the latest, if its shards have several times.
    pub fn time(&self) -> u64 {
        self.counters.time()
    }

    /// Verifies and commits in one round trip. A transaction that was judged dead meanwhile, or
    /// whose shard has moved, fails here with [`Kind::Busy`] and is rolled back.
    pub async fn commit(self) -> Result<()> {
        crash_point("ulid.commit");
        self.alive.abort();
        let committed = tokio::time::timeout(NO_ANSWER, self.verify_and_commit())
            .await
            .map_err(|_| no_answer("commit"))?;
        match committed {
            Ok(()) => {
                self.session.ended.store(true, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                self.session.end("rollback").await;
                Err(db(error))
            }
        }
    }

    /// Sends both before it waits for the first, so that they travel together. The first fails in a transaction that is
    /// not ours any more, or that an error has ended, where a COMMIT alone would be a rollback without a word. If the
    /// verification fails, the server turns the commit that follows it into a rollback.
    async fn verify_and_commit(&self) -> Result<(), tokio_postgres::Error> {
        let verify = self
            .prepare_cached("select changefeed.commit_ulid_transaction()")
            .await?;
        let commit = match &self.session.unlock {
            Some(unlock) => format!("commit; {unlock}"),
            None => "commit".to_owned(),
        };
        tokio::try_join!(
            self.session.execute(&verify, &[]),
            self.session.batch_execute(&commit)
        )?;
        Ok(())
    }

    /// Rolls back and frees the shard.
    pub async fn rollback(self) -> Result<()> {
        self.alive.abort();
        self.session.end("rollback").await;
        Ok(())
    }
}

impl Deref for UlidTransaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.session
    }
}

impl Drop for UlidTransaction {
    fn drop(&mut self) {
        self.alive.abort();
    }
}

impl Holder {
    /// Ends the transaction and frees the lock; a connection on which that fails is not used again.
    async fn end(&self, how: &str) {
        let mut statement = how.to_owned();
        if let Some(unlock) = &self.unlock {
            statement.push_str("; ");
            statement.push_str(unlock);
        }
        if self.batch_execute(&statement).await.is_ok() {
            self.ended.store(true, Ordering::Release);
        }
    }

    /// Closes the connection.
    fn discard(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

impl Deref for Holder {
    type Target = Client;

    #[expect(
        clippy::expect_used,
        reason = "the client is taken only by discard and drop"
    )]
    fn deref(&self) -> &Client {
        self.client.as_ref().expect("the session is open")
    }
}

impl Drop for Holder {
    /// A connection whose transaction has not ended is closed, and the server rolls back: it must
    /// not go back to the pool.
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Acquire) {
            self.discard();
        }
    }
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// The server answers with the first ULID of each shard.
fn states(row: &tokio_postgres::Row) -> Result<Vec<UlidState>> {
    let ulids: &[u8] = row.take(0)?;
    let (ulids, []) = ulids.as_chunks::<16>() else {
        return Err(Error::new(Kind::Database, "a ULID has 16 bytes"));
    };
    let state = |bytes: &[u8; 16]| UlidState::at(Ulid::from_bytes(*bytes));
    Ok(ulids.iter().map(state).collect())
}

/// Makes it plain which errors of the server a ULID transaction brings.
pub(crate) fn explain(code: &str, message: String) -> Option<Error> {
    Some(match code {
        "CF001" | "CF002" => Error::new(Kind::Busy, message).advise("try again"),
        "CF003" => Error::new(Kind::Busy, message).advise("do the transaction again"),
        "CF004" => Error::invalid(message),
        _ => return None,
    })
}
