//! Connections and their pool.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use changefeed_core::{Error, Kind, Result, words};
use deadpool::managed::{self, Metrics, Object, QueueMode, RecycleError, RecycleResult};
use socket2::{SockRef, TcpKeepalive};
use tiberius::{Client, QueryStream, Row, ToSql};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt};

use crate::connect::Target;
use crate::error::db;
use crate::platform::{Platform, batches};
use crate::row::first;

/// How long a call waits for a connection that others have.
const QUEUE: Duration = Duration::from_secs(10);
/// How long a connection that was idle may take to say that it is alive.
const ALIVE: Duration = Duration::from_secs(5);
/// A connection that nobody has used for so long is asked whether it is alive.
const TRUSTED_FOR: Duration = Duration::from_secs(15);
/// How long the other side may be silent before it is asked whether it is there, and how long what was
/// sent to it may go unconfirmed.
const SILENCE: Duration = Duration::from_secs(30);

/// What every session of ours is set to, whatever the login's or the server's defaults are:
/// filtered indexes need the ANSI settings, and an error of ours must undo its transaction. Of two in
/// a deadlock it is we who try again, not the application.
const SESSION: &str = "set nocount on; set xact_abort on; set implicit_transactions off; \
     set ansi_nulls on; set ansi_padding on; set ansi_warnings on; set arithabort on; \
     set concat_null_yields_null on; set quoted_identifier on; set numeric_roundabort off; \
     set dateformat ymd; set datefirst 7; set lock_timeout 30000; set deadlock_priority low; \
     set transaction isolation level read committed; \
     select case when @@version like '%Babelfish%' then 1 else 0 end";

/// A pool of connections.
pub(crate) type Pool = managed::Pool<Manager>;

/// A parameter of a statement.
pub(crate) type Parameter<'a> = &'a dyn ToSql;

/// A connection to the server. A call that was cut off in the middle (its future was dropped)
/// leaves it unusable, and it is thrown away.
pub struct Connection {
    client: Client<Compat<TcpStream>>,
    platform: Platform,
    used: Instant,
    /// Whether the last call was answered to its end.
    whole: bool,
    in_transaction: bool,
}

impl Connection {
    /// Connects, outside of any pool.
    pub async fn open(target: &Target) -> Result<Self> {
        let client = target.connect().await?;
        let mut connection = Connection {
            client,
            platform: Platform::SqlServer,
            used: Instant::now(),
            whole: true,
            in_transaction: false,
        };
        let rows = tokio::time::timeout(target.patience(), connection.call(SESSION))
            .await
            .map_err(|late| {
                Error::new(Kind::Unavailable, "the SQL Server does not answer").caused_by(late)
            })??;
        if first::<i32>(&rows, 0)? == Some(1) {
            connection.platform = Platform::Babelfish;
        }
        Ok(connection)
    }

    /// Runs a statement with parameters `@P1`, `@P2`, … and returns the rows of its last result
    /// that has any.
    pub async fn query(&mut self, sql: &str, parameters: &[&dyn ToSql]) -> Result<Vec<Row>> {
        self.tried(sql, parameters).await.map_err(db)
    }

    /// The same, with the driver's own error.
    pub(crate) async fn tried(
        &mut self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, tiberius::error::Error> {
        Ok(last(self.results(sql, parameters).await?))
    }

    /// All results of a statement.
    pub(crate) async fn results(
        &mut self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Vec<Row>>, tiberius::error::Error> {
        self.whole = false;
        let sql = self.platform.statement(sql);
        let answer = match Box::pin(self.client.query(sql, parameters)).await {
            Ok(stream) => Box::pin(stream.into_results()).await,
            Err(error) => Err(error),
        };
        self.answered(answer)
    }

    /// Runs a statement that returns exactly one row.
    pub(crate) async fn one(&mut self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Row> {
        self.query(sql, parameters)
            .await?
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(Kind::Database, "the server returned no row"))
    }

    /// Runs a statement and returns how many rows it changed.
    pub async fn execute(&mut self, sql: &str, parameters: &[&dyn ToSql]) -> Result<u64> {
        self.tried_execute(sql, parameters).await.map_err(db)
    }

    /// The same, with the driver's own error. `NOCOUNT` is on, so the number comes as a row.
    pub(crate) async fn tried_execute(
        &mut self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<u64, tiberius::error::Error> {
        let counted = format!("{sql}; select convert(bigint, @@rowcount)");
        let rows = self.tried(&counted, parameters).await?;
        let count: Option<i64> = rows.first().map_or(Ok(None), |row| row.try_get(0))?;
        Ok(count.and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
    }

    /// Runs a batch without parameters: what may have to be the only statement of its batch.
    pub async fn batch(&mut self, sql: &str) -> Result<()> {
        self.tried_batch(sql).await.map_err(db)
    }

    /// The same, with the driver's own error.
    pub(crate) async fn tried_batch(&mut self, sql: &str) -> Result<(), tiberius::error::Error> {
        self.simple(sql).await.map(drop)
    }

    /// All results of a batch without parameters.
    pub async fn simple(&mut self, sql: &str) -> Result<Vec<Vec<Row>>, tiberius::error::Error> {
        let sql = self.platform.statement(sql).into_owned();
        self.sent(sql).await
    }

    /// Sends a batch as it is.
    async fn sent(&mut self, batch: String) -> Result<Vec<Vec<Row>>, tiberius::error::Error> {
        self.whole = false;
        let answer = match Box::pin(self.client.simple_query(batch)).await {
            Ok(stream) => Box::pin(QueryStream::into_results(stream)).await,
            Err(error) => Err(error),
        };
        self.answered(answer)
    }

    /// Calls a procedure, with its arguments as SQL, and returns the rows of its last result that
    /// has any. As a batch, not with parameters: within `sp_executesql`, which carries those,
    /// Babelfish mistakes the names in checks of foreign keys.
    pub(crate) async fn call(&mut self, call: &str) -> Result<Vec<Row>> {
        Ok(last(self.simple(call).await.map_err(db)?))
    }

    /// Runs a script, batch by batch.
    pub(crate) async fn script(&mut self, script: &str) -> Result<()> {
        for batch in batches(&self.platform.script(script)) {
            self.sent(batch).await.map_err(db)?;
        }
        Ok(())
    }

    /// Begins a transaction. Who does not come to [`commit`](Self::commit) has it rolled back:
    /// the connection goes back to no pool.
    pub async fn begin(&mut self) -> Result<()> {
        self.batch("begin transaction").await?;
        self.in_transaction = true;
        Ok(())
    }

    /// Commits.
    pub async fn commit(&mut self) -> Result<()> {
        self.batch("commit transaction").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Rolls back.
    pub async fn rollback(&mut self) -> Result<()> {
        self.batch("if @@trancount > 0 rollback transaction")
            .await?;
        self.in_transaction = false;
        Ok(())
    }

    /// After an error in the middle of something: ends what is open, and sets the isolation level that
    /// every session has. If that fails, the connection goes back to no pool.
    pub(crate) async fn tidy(&mut self) {
        let tidied = self
            .batch(
                "if @@trancount > 0 rollback transaction; \
                 set transaction isolation level read committed",
            )
            .await;
        self.in_transaction = tidied.is_err();
    }

    /// Which server this is.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    fn answered<T>(
        &mut self,
        answer: Result<T, tiberius::error::Error>,
    ) -> Result<T, tiberius::error::Error> {
        // An error that the server reported was read to its end; any other leaves the stream
        // somewhere in between.
        self.whole = matches!(&answer, Ok(_) | Err(tiberius::error::Error::Server(_)));
        self.used = Instant::now();
        answer
    }
}

/// The last result that has rows.
fn last(results: Vec<Vec<Row>>) -> Vec<Row> {
    let mut with_rows = results.into_iter().rev();
    with_rows.find(|rows| !rows.is_empty()).unwrap_or_default()
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Makes connections for the pool.
#[derive(Debug)]
pub(crate) struct Manager {
    target: Target,
    /// Whether the database was there before. One that was, and cannot be opened, is recovering or failing over.
    met: AtomicBool,
}

impl managed::Manager for Manager {
    type Type = Connection;
    type Error = Error;

    async fn create(&self) -> Result<Connection> {
        let opened = Connection::open(&self.target).await;
        match opened {
            Ok(_) => self.met.store(true, Ordering::Relaxed),
            Err(error) if error.kind() == Kind::NotFound && self.met.load(Ordering::Relaxed) => {
                return Err(words::server_unavailable(error.message()).caused_by(error));
            }
            Err(_) => {}
        }
        opened
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<Error> {
        if !connection.whole || connection.in_transaction {
            return Err(RecycleError::message("cut off in the middle of a call"));
        }
        if connection.used.elapsed() > TRUSTED_FOR {
            tokio::time::timeout(ALIVE, connection.batch("select 1"))
                .await
                .map_err(|_| RecycleError::message("it does not answer"))??;
        }
        Ok(())
    }
}

/// A pool of connections to a server.
pub(crate) fn pool(target: Target, size: usize) -> Result<Pool> {
    let met = AtomicBool::new(false);
    Pool::builder(Manager { target, met })
        .max_size(size)
        // The one that was used last: what it has read and planned already is quick, and on Babelfish, which
        // reads a long statement anew in every session, by a hundred times.
        .queue_mode(QueueMode::Lifo)
        .build()
        .map_err(|e| Error::new(Kind::Unavailable, "no connection pool").caused_by(e))
}

/// A connection that a pool has lent. One with an open transaction, or cut off in the middle of a
/// call, does not go back: in the pool it would keep its locks until somebody asks for it.
pub(crate) struct Lent(Option<Object<Manager>>);

impl Lent {
    /// Closes the connection instead of giving it back.
    pub(crate) fn close(mut self) {
        if let Some(lent) = self.0.take() {
            drop(Object::take(lent));
        }
    }
}

impl Deref for Lent {
    type Target = Connection;

    #[expect(
        clippy::expect_used,
        reason = "it is taken out only when it is dropped"
    )]
    fn deref(&self) -> &Connection {
        self.0.as_deref().expect("lent until dropped")
    }
}

impl DerefMut for Lent {
    #[expect(
        clippy::expect_used,
        reason = "it is taken out only when it is dropped"
    )]
    fn deref_mut(&mut self) -> &mut Connection {
        self.0.as_deref_mut().expect("lent until dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(lent) = self.0.take_if(|lent| !lent.whole || lent.in_transaction) {
            drop(Object::take(lent));
        }
    }
}

/// A connection from a pool.
pub(crate) async fn get(pool: &Pool) -> Result<Lent> {
    let got = tokio::time::timeout(QUEUE, pool.get());
    let got = got.await.map_err(|_| {
        words::connections_in_use(pool.status().max_size, QUEUE).advise("try again")
    })?;
    let lent = got.map_err(|e| match e {
        managed::PoolError::Backend(error) => error,
        other => words::no_connection().caused_by(other),
    })?;
    Ok(Lent(Some(lent)))
}

/// A stream that the driver can use. Some answers take long, so the sockets notice before the limit of
/// a call that the other side is gone: when nothing is on the way, by asking; when something is, by its
/// not being confirmed.
pub(crate) async fn dial(
    host: &str,
    port: u16,
    all_addresses: bool,
) -> std::io::Result<Compat<TcpStream>> {
    let tcp = match all_addresses {
        true => first_to_answer(host, port).await?,
        false => TcpStream::connect((host, port)).await?,
    };
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(&tcp);
    let asking = TcpKeepalive::new()
        .with_time(SILENCE)
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    socket.set_tcp_keepalive(&asking)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE))?;
    Ok(tcp.compat_write())
}

/// The address of a host that answers first, of all that it has: of an availability group whose listener is in
/// several subnets only one does, and waiting for the others takes longer than a connection may.
async fn first_to_answer(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut calls = JoinSet::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        calls.spawn(TcpStream::connect(address));
    }
    let mut refused = std::io::ErrorKind::AddrNotAvailable.into();
    while let Some(called) = calls.join_next().await {
        match called.map_err(std::io::Error::other)? {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `localhost` has two addresses on most machines, of which one answers.
    #[tokio::test]
    async fn one_address_that_answers_is_enough() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        dial("localhost", port, true).await.unwrap();
        drop(listener);
        let refused = dial("localhost", port, true).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn sockets_notice_that_the_other_side_is_gone() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = dial("127.0.0.1", port, false).await.unwrap();
        let socket = SockRef::from(stream.get_ref());
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SILENCE));
            assert_eq!(socket.tcp_keepalive_time().unwrap(), SILENCE);
        }
    }
}
