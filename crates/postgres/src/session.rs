//! Sessions: a connection that is lent to one call of the store, and what this process knows.
//!
//! Only [`Door`] reaches the pools, and only the trait methods in `store.rs` reach the door. Whatever
//! is below them gets a [`Session`] and cannot ask for another: as many callers as there are
//! connections would otherwise wait for each other for ever.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use changefeed_core::{Error, Result, Sightings, WakeHub, WatchPlace, require_current, words};
use deadpool_postgres::{ClientWrapper, HookError, Object, Pool, PoolError};

use crate::connect::{BRIEF, Target, pooled};
use crate::error::{db, dialling};
use crate::surroundings::refuse_strangers;
use crate::{backlog, encoding, event_claim, floors, schema, source, sweep};

/// How long a call waits for a connection that others have.
const QUEUE: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// Set while a call has a session.
    static IN_A_CALL: ();
}

/// How long a call may take. The server's limit is the shorter one: dropping a connection does not
/// stop the statement that runs on it. Ours is for a server that does not answer at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// For each statement. None is what every session is set to.
    server: Option<Duration>,
    /// For the whole call.
    client: Duration,
}

impl Limit {
    /// What loops, readers and requests do all the time.
    pub(crate) const BRIEF: Limit = Limit {
        server: None,
        client: Duration::from_secs(BRIEF.as_secs() + 5),
    };
    /// Many brief statements in a row.
    pub(crate) const STEPS: Limit = Limit {
        server: None,
        client: Duration::from_secs(120),
    };
    /// What counts or walks.
    pub(crate) const LONG: Limit = Limit {
        server: Some(Duration::from_secs(60)),
        client: Duration::from_secs(150),
    };
    /// What a person asked for, or a table is rebuilt for.
    pub(crate) const ADMIN: Limit = Limit {
        server: Some(Duration::from_secs(3600)),
        client: Duration::from_secs(3900),
    };
}

/// What this process knows about the database. None of it is needed for correctness.
#[derive(Default)]
pub(crate) struct Known {
    /// The server's name for people: what it is and where.
    pub(crate) server: String,
    pub(crate) hub: WakeHub,
    pub(crate) watches: WakeHub<WatchPlace>,
    pub(crate) commits: WakeHub<()>,
    pub(crate) row_types: source::RowTypes,
    pub(crate) floors: floors::Floors,
    pub(crate) encoding: encoding::Encoding,
    pub(crate) walks: event_claim::Walks,
    pub(crate) backlogs: backlog::Backlogs,
    pub(crate) sightings: Sightings,
    pub(crate) quiet: sweep::Quiet,
}

/// A connection for the time of one call.
pub(crate) struct Session {
    client: Object,
    pub(crate) known: Arc<Known>,
}

impl Deref for Session {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut ClientWrapper {
        &mut self.client
    }
}

/// The only way to the connections.
pub(crate) struct Door {
    pub(crate) target: Target,
    /// For everything but what the others are for.
    pub(crate) work: Pool,
    /// For sweeps and their leases: readers and requests cannot keep them waiting.
    numbering: Pool,
    /// For ULID transactions, in which the application runs statements of its own: these sessions
    /// have the settings of their role.
    application: Pool,
    /// For the one session that waits for commits.
    pub(crate) waiting: Pool,
    schema_checked: AtomicBool,
}

impl Door {
    pub(crate) fn new(target: Target) -> Result<Self> {
        Ok(Door {
            work: target.work_pool()?,
            numbering: target.numbering_pool()?,
            application: target.application_pool()?,
            waiting: target.waiting_pool()?,
            target,
            schema_checked: AtomicBool::new(false),
        })
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
        lend(&self.numbering, known, Limit::BRIEF, async |session| {
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

    /// A connection for a ULID transaction, for as long as that lasts.
    pub(crate) async fn application(&self, known: &Arc<Known>) -> Result<Object> {
        if !self.schema_checked.load(Ordering::Relaxed) {
            self.call(known, Limit::BRIEF, async |_| Ok(())).await?;
        }
        connection(&self.application, &self.target.server()).await
    }

    async fn check_schema(&self, session: &Session) -> Result<()> {
        if !self.schema_checked.load(Ordering::Relaxed) {
            require_current(schema::installed(&***session, schema::MIGRATIONS).await?)?;
            refuse_strangers(&***session).await?;
            self.schema_checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Lends a connection of a pool to a call. A connection on which the call did not come to its end,
/// because it took too long or because nobody waits for it any more, is closed: something may still
/// be running on it.
pub(crate) async fn lend<T>(
    pool: &Pool,
    known: &Arc<Known>,
    limit: Limit,
    act: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    if IN_A_CALL.try_with(|()| ()).is_ok() {
        return Err(words::second_connection());
    }
    let mut lent = Lent {
        session: Some(Session {
            client: connection(pool, &known.server).await?,
            known: known.clone(),
        }),
    };
    let done = match &mut lent.session {
        Some(session) => {
            let work = IN_A_CALL.scope((), run(session, limit, act));
            tokio::time::timeout(limit.client, work).await
        }
        None => return Err(no_answer(limit)),
    };
    match done {
        Ok((done, clean)) => {
            if clean {
                lent.give_back();
            }
            done
        }
        Err(_) => {
            tracing::warn!(
                after = ?limit.client,
                "the database does not answer; the connection is closed"
            );
            Err(no_answer(limit))
        }
    }
}

/// Runs a call under the server's limit. Says also whether the session is what it was.
async fn run<T>(
    session: &mut Session,
    limit: Limit,
    act: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> (Result<T>, bool) {
    let Some(server) = limit.server else {
        return (act(session).await, true);
    };
    if let Err(error) = set_limit(session, server).await {
        return (Err(error), false);
    }
    let done = act(session).await;
    let clean = set_limit(session, BRIEF).await.is_ok();
    (done, clean)
}

async fn set_limit(session: &Session, limit: Duration) -> Result<()> {
    let sql = format!("set statement_timeout = {}", limit.as_millis());
    session.batch_execute(&sql).await.map_err(db)
}

/// A connection out of a pool, which is closed unless it is given back.
struct Lent {
    session: Option<Session>,
}

impl Lent {
    fn give_back(mut self) {
        // Dropping an `Object` returns it to its pool.
        drop(self.session.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            drop(Object::take(session.client));
        }
    }
}

/// A connection of a pool, if one is free in time.
async fn connection(pool: &Pool, server: &str) -> Result<Object> {
    let got = tokio::time::timeout(QUEUE, pool.get()).await.map_err(|_| {
        words::connections_in_use(pool.status().max_size, QUEUE)
            .advise("try again, or allow more with max_connections in the database URL")
    })?;
    got.map_err(|e| match e {
        PoolError::Backend(e) => dialling(e, server),
        PoolError::PostCreateHook(HookError::Backend(e)) => dialling(e, server),
        PoolError::PostCreateHook(HookError::Message(_)) => pooled(),
        other => words::no_connection().caused_by(other),
    })
}

fn no_answer(limit: Limit) -> Error {
    words::no_answer(limit.client, "pg_stat_activity")
}
