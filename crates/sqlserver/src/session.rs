//! Sessions: a connection that is lent to one call of the store, and what this process knows.
//!
//! Only [`Door`] reaches the pools, and only the trait methods in `store.rs` reach the door. Whatever
//! is below them gets a [`Session`] and cannot ask for another: as many callers as there are
//! connections would otherwise wait for each other for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use changefeed_core::{
    Connections, PageJoins, Result, Sightings, WakeHub, WatchPlace, require_current, words,
};

use crate::connect::Target;
use crate::connection::{self, Lent, Pool};
use crate::{backlog, event_claim, schema};

/// Connections that a store keeps at most: for everything, for sweeps and their leases, and for the
/// application's ULID transactions.
const WORK: usize = 10;
const NUMBERING: usize = 3;
const APPLICATION: usize = 10;

tokio::task_local! {
    /// Set while a call has a session.
    static IN_A_CALL: ();
}

/// How long a call may take until its connection is thrown away.
///
/// SQL Server has no limit for a statement of its own: other drivers ask it to stop (an attention),
/// and ours cannot. `set lock_timeout` bounds each wait for a lock, and is the shorter one. Behind
/// these limits are a server that does not answer, and a statement that works for too long; it goes
/// on until the server notices that the connection is closed, and is rolled back then. So a call
/// that took too long may have been done or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(Duration);

impl Limit {
    /// What loops, readers and requests do all the time: longer than a wait for a lock.
    pub(crate) const BRIEF: Limit = Limit(Duration::from_secs(45));
    /// What counts or walks, or many brief statements in a row.
    pub(crate) const LONG: Limit = Limit(Duration::from_secs(150));
    /// What a person asked for, or a table is rebuilt for.
    pub(crate) const ADMIN: Limit = Limit(Duration::from_secs(3900));
}

/// What this process knows about the database. None of it is needed for correctness.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) hub: WakeHub,
    pub(crate) watches: WakeHub<WatchPlace>,
    pub(crate) joins: PageJoins,
    pub(crate) backlogs: backlog::Backlogs,
    pub(crate) walks: event_claim::Walks,
    pub(crate) sightings: Sightings,
}

/// A connection for the time of one call.
pub(crate) struct Session {
    pub(crate) connection: Lent,
    pub(crate) known: Arc<Known>,
}

/// The only way to the connections.
pub(crate) struct Door {
    pub(crate) target: Target,
    work: Pool,
    /// Readers and requests cannot keep sweeps waiting.
    numbering: Pool,
    application: Pool,
    schema_checked: AtomicBool,
}

impl Door {
    pub(crate) fn new(target: Target) -> Result<Self> {
        Ok(Door {
            work: connection::pool(target.clone(), WORK)?,
            numbering: connection::pool(target.clone(), NUMBERING)?,
            application: connection::pool(target.clone(), APPLICATION)?,
            target,
            schema_checked: AtomicBool::new(false),
        })
    }

    /// The connections of this process.
    pub(crate) fn connections(&self) -> Connections {
        let mut sum = Connections::default();
        for pool in [&self.work, &self.numbering, &self.application] {
            let status = pool.status();
            sum.most += status.max_size;
            sum.open += status.size;
            sum.idle += status.available;
            sum.waiting += status.waiting;
        }
        sum
    }

    /// Whatever is known about the installed schema has to be looked up again.
    pub(crate) fn forget_schema(&self) {
        self.schema_checked.store(false, Ordering::Relaxed);
    }

    /// Lends a connection to a call, in a database whose schema this program knows.
    pub(crate) async fn call<T>(
        &self,
        known: &Arc<Known>,
        limit: Limit,
        act: impl AsyncFnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        lend(&self.work, known, limit, async |session| {
            self.check_schema(session).await?;
            act(session).await
        })
        .await
    }

    /// The same for what gives numbers.
    pub(crate) async fn number<T>(
        &self,
        known: &Arc<Known>,
        act: impl AsyncFnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        lend(&self.numbering, known, Limit::LONG, async |session| {
            self.check_schema(session).await?;
            act(session).await
        })
        .await
    }

    /// The same, whatever is installed in the database.
    pub(crate) async fn call_anyway<T>(
        &self,
        known: &Arc<Known>,
        limit: Limit,
        act: impl AsyncFnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        lend(&self.work, known, limit, act).await
    }

    /// A connection for a ULID transaction, for as long as that lasts. Its statements are the
    /// application's, which alone knows how long they may take.
    pub(crate) async fn application(&self, known: &Arc<Known>) -> Result<Lent> {
        if !self.schema_checked.load(Ordering::Relaxed) {
            self.call(known, Limit::BRIEF, async |_| Ok(())).await?;
        }
        connection::get(&self.application).await
    }

    async fn check_schema(&self, session: &mut Session) -> Result<()> {
        if !self.schema_checked.load(Ordering::Relaxed) {
            require_current(schema::installed(&mut session.connection, schema::MIGRATIONS).await?)?;
            self.schema_checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Lends a connection of a pool to a call. One on which the call did not come to its end, because it
/// took too long or because nobody waits for it any more, is closed: something may still be running
/// on it. See [`Lent`].
async fn lend<T>(
    pool: &Pool,
    known: &Arc<Known>,
    limit: Limit,
    act: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    if IN_A_CALL.try_with(|()| ()).is_ok() {
        return Err(words::second_connection());
    }
    let mut session = Session {
        connection: connection::get(pool).await?,
        known: known.clone(),
    };
    let work = IN_A_CALL.scope((), act(&mut session));
    match tokio::time::timeout(limit.0, work).await {
        Ok(done) => done,
        Err(_) => {
            tracing::warn!(after = ?limit.0, "the database does not answer; the connection is closed");
            session.connection.close();
            Err(words::no_answer(limit.0, "sys.dm_exec_requests"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use changefeed_core::Kind;
    use tokio::net::TcpListener;

    use super::*;

    /// A server that takes connections and never says a word.
    async fn silent() -> (String, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                kept.push(stream);
            }
        });
        let url = format!("sqlserver://u:p@127.0.0.1:{port}/d?encrypt=off");
        (url, accepting)
    }

    #[tokio::test]
    async fn a_server_that_never_answers_is_unavailable_in_time() {
        let (url, accepting) = silent().await;
        let target = Target::parse(&url)
            .unwrap()
            .connect_within(Duration::from_millis(300));
        let door = Door::new(target).unwrap();
        let began = Instant::now();
        let known = Arc::default();
        let call = door.call(&known, Limit::BRIEF, async |_| Ok(()));
        let error = call.await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
        accepting.abort();
    }

    #[tokio::test]
    async fn a_call_cannot_ask_for_a_second_connection() {
        let (url, accepting) = silent().await;
        let target = Target::parse(&url).unwrap();
        let door = Door::new(target).unwrap();
        let known = Arc::default();
        let call = door.call(&known, Limit::BRIEF, async |_| Ok(()));
        let nested = IN_A_CALL.scope((), call);
        let error = nested.await.unwrap_err();
        assert!(error.message().contains("second connection"), "{error:?}");
        accepting.abort();
    }
}
