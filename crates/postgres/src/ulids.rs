//! ULID transactions for clients; `migrations/0001/ulids.sql` explains them.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use changefeed_core::{
    Error, Kind, Result, Ulid, UlidCounter, UlidOptions, UlidState, crash_point,
};
use deadpool_postgres::Object;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, IsolationLevel};

use crate::PostgresStore;
use crate::error::{db, ulid_code};
use crate::row::Cells;
use crate::session::Limit;

/// A transaction whose ULIDs are increasing for every observer of its shard.
///
/// It dereferences to the driver's client, on which every statement belongs to this transaction.
/// A background task shows the server that this process is alive, so that a transaction which
/// computes for long is not judged dead. Dropping it rolls back and frees the shard.
pub struct UlidTransaction {
    session: Arc<Holder>,
    counter: UlidCounter,
    alive: AbortHandle,
}

impl std::fmt::Debug for UlidTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UlidTransaction")
            .field("counter", &self.counter)
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
    /// Begins a ULID transaction: queues for the shard, and goes on by itself after an incident.
    pub async fn begin_ulid(&self, options: &UlidOptions) -> Result<UlidTransaction> {
        self.begin_ulid_with(options, IsolationLevel::ReadCommitted)
            .await
    }

    /// The same with another isolation level; the lock is taken before the transaction begins, so
    /// that its snapshot is not older than the lock.
    pub async fn begin_ulid_with(
        &self,
        options: &UlidOptions,
        isolation: IsolationLevel,
    ) -> Result<UlidTransaction> {
        options.validate()?;
        // To wait for ever is to wait for the largest number of milliseconds.
        let deadline = Instant::now() + options.wait.min(LONGEST_WAIT);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let begun = async {
                match isolation {
                    IsolationLevel::ReadCommitted | IsolationLevel::ReadUncommitted => {
                        self.try_begin(options, left).await
                    }
                    other => self.try_begin_locked(options, left, other).await,
                }
            };
            // A connection that does not answer is closed, and the server rolls back.
            let begun = tokio::time::timeout(left + NO_ANSWER, begun)
                .await
                .map_err(|_| no_answer("begin"))?;
            let error = match begun? {
                Ok((session, state)) => return Ok(UlidTransaction::new(session, state, options)),
                Err(error) => error,
            };
            if ulid_code(&error) != Some("CF001") || Instant::now() >= deadline {
                return Err(db(error));
            }
            // On another connection and outside of any transaction, so that the number survives and
            // is seen at once. Doing it is also the proof that this client lives.
            self.report_incident(options).await?;
        }
    }

    async fn report_incident(&self, options: &UlidOptions) -> Result<()> {
        let timeout = milliseconds(options.timeout);
        let raised: bool = self
            .call(Limit::BRIEF, async |session| {
                let row = session
                    .query_one(
                        "select changefeed.report_incident($1, $2, $3)",
                        &[&options.feed, &options.shard, &timeout],
                    )
                    .await
                    .map_err(db)?;
                row.take(0)
            })
            .await?;
        if raised {
            tracing::warn!(feed = %options.feed, shard = options.shard,
                "a writer disappeared; its lock was burned");
        }
        Ok(())
    }

    /// One attempt; the inner error is the server's refusal.
    async fn try_begin(
        &self,
        options: &UlidOptions,
        wait: Duration,
    ) -> Result<Result<(Holder, UlidState), tokio_postgres::Error>> {
        let client = self.inner.door.application(&self.inner.known).await?;
        let statement = client
            .prepare_cached(
                // The session has the path of its role, which may lead to anybody's operators.
                "select time_ms, high, low from changefeed.ulid_begin($1, $2, $3, \
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
            [&options.feed, &options.shard, &timeout, &hint, &wait];
        // Polled together, both travel in one round trip.
        let begun = tokio::try_join!(
            session.batch_execute("begin isolation level read committed"),
            session.query_one(&statement, &parameters),
        );
        match begun {
            Ok(((), row)) => {
                let state = state(&row)?;
                Ok(Ok((session, state)))
            }
            Err(error) => {
                session.end("rollback").await;
                Ok(Err(error))
            }
        }
    }

    /// One attempt that takes the lock for the session first.
    async fn try_begin_locked(
        &self,
        options: &UlidOptions,
        wait: Duration,
        isolation: IsolationLevel,
    ) -> Result<Result<(Holder, UlidState), tokio_postgres::Error>> {
        let client = self.inner.door.application(&self.inner.known).await?;
        let mut session = Holder {
            client: Some(client),
            ended: AtomicBool::new(false),
            unlock: None,
        };
        let (timeout, wait) = (milliseconds(options.timeout), milliseconds(wait));
        let shard: [&(dyn ToSql + Sync); 2] = [&options.feed, &options.shard];
        let lock: [&(dyn ToSql + Sync); 4] = [&options.feed, &options.shard, &timeout, &wait];
        let locked = tokio::try_join!(
            session.execute("select changefeed.ulid_shard($1, $2)", &shard),
            session.query_one(
                "select l, changefeed.ulid_lock_key($1, $2, l) \
                 from changefeed.ulid_lock_session($1, $2, $3, $4) l",
                &lock,
            ),
        );
        let row = match locked {
            Ok((_, row)) => row,
            Err(error) => {
                // Whether the lock was taken is not known for sure: the session must not live on.
                session.discard();
                return Ok(Err(error));
            }
        };
        let (incidents, key): (i64, i64) = (row.take(0)?, row.take(1)?);
        session.unlock = Some(format!("select pg_catalog.pg_advisory_unlock({key})"));
        let level = match isolation {
            IsolationLevel::Serializable => "serializable",
            _ => "repeatable read",
        };
        let begin = format!("begin isolation level {level}");
        let hint = options.time_hint.map(|t| t as f64);
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&options.feed, &options.shard, &incidents, &timeout, &hint];
        let begun = tokio::try_join!(
            session.batch_execute(&begin),
            session.query_one(
                "select time_ms, high, low from changefeed.ulid_begin_locked($1, $2, $3, $4, \
                 pg_catalog.timestamptz 'epoch' operator(pg_catalog.+) \
                 ($5 operator(pg_catalog.*) interval '1 millisecond'))",
                &parameters,
            ),
        );
        match begun {
            Ok(((), row)) => {
                let state = state(&row)?;
                Ok(Ok((session, state)))
            }
            Err(error) => {
                session.end("rollback").await;
                Ok(Err(error))
            }
        }
    }
}

impl UlidTransaction {
    fn new(session: Holder, begin: UlidState, options: &UlidOptions) -> Self {
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
            session,
            counter: UlidCounter::new(begin),
            alive,
        }
    }

    /// The next ULID.
    pub fn next_ulid(&mut self) -> Result<Ulid> {
        let mut one = self.ulids(1)?;
        one.next().ok_or_else(|| Error::invalid("no ULID is left"))
    }

    /// The next `count` ULIDs, in order.
    pub fn ulids(&mut self, count: u64) -> Result<impl Iterator<Item = Ulid> + use<>> {
        self.counter.take(count)
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

    /// When this transaction happens, in milliseconds since 1970.
    pub fn time(&self) -> u64 {
        self.counter.time()
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

    /// Sends both before it waits for the first, so that they travel together. If the
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

fn state(row: &tokio_postgres::Row) -> Result<UlidState> {
    let (time, high, low): (i64, &[u8], i64) = (row.take(0)?, row.take(1)?, row.take(2)?);
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(high) {
        *to = *from;
    }
    Ok(UlidState {
        time: time.cast_unsigned(),
        high: u64::from_be_bytes(bytes),
        low: low.cast_unsigned(),
    })
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
