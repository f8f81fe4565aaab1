//! Writers that know nothing of us, and what their tables prove about the log.
//!
//! Rows of the table `orders` have a version that every update raises by one. So the events of a
//! row are a chain: an INSERT, an UPDATE from each version to the next, and a DELETE if the row is
//! gone; and where the chain ends is what the table holds.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use changefeed_core::{Operation, Store};
use fastrand::Rng;
use tokio::task::JoinHandle;

use crate::backend::{Backend, Session};
use crate::events::{log, row};

/// The table that writers write to.
pub const ORDERS: &str =
    "create table orders (id integer primary key, customer text, version integer not null)";

/// Writers at work.
#[derive(Debug)]
pub struct Writers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
}

impl Writers {
    /// Starts so many sessions of the application, and one that uses the database's own shell.
    pub fn start(backend: &Arc<dyn Backend>, sessions: u64, seed: u64) -> Self {
        Self::start_slowly(backend, sessions, seed, Duration::ZERO)
    }

    /// The same, with another pause after each transaction: for runs that take hours.
    pub fn start_slowly(
        backend: &Arc<dyn Backend>,
        sessions: u64,
        seed: u64,
        pace: Duration,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicI64::new(1));
        let mut tasks = Vec::new();
        for n in 0..sessions {
            let writer = Writer {
                backend: Arc::clone(backend),
                next: Arc::clone(&next),
                stop: Arc::clone(&stop),
                pace,
                rng: Rng::with_seed(seed ^ n),
            };
            tasks.push(tokio::spawn(writer.by_session()));
        }
        let writer = Writer {
            backend: Arc::clone(backend),
            next,
            stop: Arc::clone(&stop),
            pace,
            rng: Rng::with_seed(!seed),
        };
        tasks.push(tokio::spawn(writer.by_shell()));
        Writers { stop, tasks }
    }

    /// Stops them. Returns how many transactions they know to be committed.
    pub async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let mut committed = 0;
        for task in self.tasks {
            committed += task.await.unwrap();
        }
        committed
    }
}

struct Writer {
    backend: Arc<dyn Backend>,
    next: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
    pace: Duration,
    rng: Rng,
}

impl Writer {
    /// Statements of one transaction.
    fn statements(&mut self) -> Vec<String> {
        let mut statements = Vec::new();
        for _ in 0..self.rng.u8(1..4) {
            let id = self.next.fetch_add(1, Ordering::SeqCst);
            let known = self.rng.i64(1..=id);
            statements.push(match self.rng.u8(..10) {
                0..=4 => format!("insert into orders values ({id}, 'c{}', 0)", id % 7),
                5..=7 => format!("update orders set version = version + 1 where id = {known}"),
                // The same value again is no change.
                8 => format!("update orders set version = version where id = {known}"),
                _ => format!("delete from orders where id = {known}"),
            });
        }
        // The same order everywhere, or writers would wait for each other in a circle.
        statements.sort_by_key(|s| s.contains("where"));
        statements.truncate(2);
        statements
    }

    async fn by_session(mut self) -> u64 {
        let mut committed = 0;
        let mut session: Option<Box<dyn Session>> = None;
        while !self.stop.load(Ordering::SeqCst) {
            let usable = match session.take() {
                Some(session) => session,
                None => match self.backend.try_session().await {
                    Ok(session) => session,
                    // The server is down at this moment.
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                },
            };
            let end = if self.rng.u8(..5) == 0 {
                "rollback"
            } else {
                "commit"
            };
            let begin = self.backend.words().begin;
            let statements = self.statements();
            let all = [begin]
                .into_iter()
                .chain(statements.iter().map(String::as_str))
                .chain([end]);
            let mut failed = None;
            for sql in all {
                if let Err(error) = usable.execute(sql).await {
                    failed = Some(error);
                    break;
                }
            }
            match failed {
                None => {
                    committed += u64::from(end == "commit");
                    session = Some(usable);
                }
                Some(error) if error.connection_lost => {}
                Some(error) => {
                    assert!(
                        !error.message.contains("changefeed"),
                        "a write of the application failed because of us: {error}"
                    );
                    let _ = usable.execute("rollback").await;
                    session = Some(usable);
                }
            }
            let pause = self.rng.u64(0..15);
            tokio::time::sleep(self.pace + Duration::from_millis(pause)).await;
        }
        committed
    }

    async fn by_shell(mut self) -> u64 {
        let mut committed = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let sql = self.statements().join("; ");
            let status = tokio::process::Command::from(self.backend.shell(&sql))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .await
                .unwrap();
            committed += u64::from(status.success());
            tokio::time::sleep(self.pace + Duration::from_millis(50)).await;
        }
        committed
    }
}

/// Every committed change has exactly one event, and nothing else has one. Returns how many there
/// are.
pub async fn every_change_has_its_event(store: &dyn Store, session: &dyn Session) -> usize {
    let rows = session
        .query("select id, version from orders")
        .await
        .unwrap();
    let mut table: BTreeMap<i64, i64> = rows
        .iter()
        .map(|row| {
            let number = |n: usize| row[n].as_ref().unwrap().parse().unwrap();
            (number(0), number(1))
        })
        .collect();
    let events = log(store).await;
    let mut chains: BTreeMap<i64, Option<i64>> = BTreeMap::new();
    for logged in &events {
        let event = &logged.event;
        let (old, new) = (row(event.old.as_deref()), row(event.new.as_deref()));
        let key = if new.is_null() { &old } else { &new };
        let id = key["id"].as_i64().unwrap();
        let (before, after) = (old["version"].as_i64(), new["version"].as_i64());
        let end = chains.get(&id).copied().flatten();
        assert_eq!(
            before, end,
            "row {id}: an event is missing before {event:?}"
        );
        match event.op {
            Operation::Insert => assert_eq!(after, Some(0)),
            Operation::Update => assert_eq!(after, before.map(|v| v + 1), "{event:?}"),
            Operation::Delete => assert_eq!(after, None),
            Operation::Manual => panic!("nobody did this: {event:?}"),
        }
        chains.insert(id, after);
    }
    for (id, end) in chains {
        assert_eq!(
            table.remove(&id),
            end,
            "row {id}: its last event is missing"
        );
    }
    assert!(table.is_empty(), "rows without an event: {table:?}");
    events.len()
}
