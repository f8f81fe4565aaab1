//! A pool of one connection, frozen sessions and poolers in between.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use changefeed_core::{
    AccessStore, ConsumerStore, EventStore, FeedId, FeedStore, InstanceStore, Kind, NewFeed,
    NewToken, SchemaStore, Scope, ShardId, SweepGroup, SweepStore, TableName, TokenDigest,
    TriggerStore, WakeStore, WatchFrom, WatchSpec, WatchStore,
};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::run;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A store with this many connections, in a database with our schema and a table.
async fn store(backend: &PostgresBackend, connections: usize) -> PostgresStore {
    let url = format!("{}?max_connections={connections}", backend.url());
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    store
}

fn orders() -> NewFeed {
    NewFeed {
        id: Some(FeedId(37)),
        ..NewFeed::new("orders".parse().unwrap())
    }
}

/// What hung: a watch that is opened loads the rows that there are, with a connection of its own.
#[test]
fn ten_watches_open_at_once_on_one_connection() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let session = backend.try_session().await.unwrap();
        session
            .run("create table orders (id int primary key, note text); insert into orders values (1, 'a')")
            .await;
        let store = store(&backend, 1).await;
        let mut all = JoinSet::new();
        for n in 0..10 {
            let store = store.clone();
            all.spawn(async move {
                let mut spec = WatchSpec::new(
                    format!("w{n}").parse().unwrap(),
                    TableName::unqualified("orders"),
                );
                spec.from = WatchFrom::Beginning;
                let watch = store.open_watch(&spec).await.unwrap();
                store
                    .reset_watch(&watch, WatchFrom::Beginning)
                    .await
                    .unwrap();
                let status = store.watch_status(&watch, 10).await.unwrap();
                assert_eq!(status.unprocessed, 1);
            });
        }
        all.join_all().await;
    });
}

/// Forty questions at once delayed the numbering by half a minute: sweeps have connections of their own.
#[test]
fn numbering_goes_on_while_every_connection_is_taken() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = store(&backend, 1).await;
        let feed = store.create_feed(&orders()).await.unwrap();
        let session = backend.try_session().await.unwrap();
        // Somebody keeps a lock that our only connection for work waits for.
        let blocker = backend.try_session().await.unwrap();
        blocker
            .run("begin; lock table changefeed.consumer in access exclusive mode")
            .await;
        let asker = store.clone();
        let question = tokio::spawn(async move { asker.consumers().await });
        changefeed_testkit::eventually("the question waits", || async {
            (store.connections().idle == 0).then_some(())
        })
        .await;
        session.run(&backend.words().publish(37, 0, 1)).await;
        let asked = Instant::now();
        let report = store.sweep(SweepGroup(0)).await.unwrap();
        assert_eq!(report.changes(), 1);
        assert!(asked.elapsed() < Duration::from_secs(5));
        blocker.run("rollback").await;
        question.await.unwrap().unwrap();
        drop(feed);
    });
}

/// The same calls that held a connection and asked for another.
#[test]
fn every_call_does_with_one_connection() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = store(&backend, 1).await;
        let token = NewToken {
            id: "abcdefghijkl".parse().unwrap(),
            name: "one".to_owned(),
            digest: TokenDigest([7; 32]),
            scopes: vec![Scope::Operate],
            expires_after: None,
        };
        store.create_token(&token).await.unwrap();
        assert_eq!(store.tokens().await.unwrap().len(), 1);
        store.refresh_triggers().await.unwrap();
        store.capture_findings().await.unwrap();
        store.watch_findings().await.unwrap();
        store.trigger_states().await.unwrap();
        store.server_findings().await.unwrap();
    });
}

/// A call that waits for a connection gives up with a sentence, and does not wait for ever.
#[test]
fn a_call_that_gets_no_connection_says_so() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = store(&backend, 1).await;
        let blocker = backend.try_session().await.unwrap();
        blocker
            .run("begin; lock table changefeed.consumer in access exclusive mode")
            .await;
        let asker = store.clone();
        let question = tokio::spawn(async move { asker.consumers().await });
        changefeed_testkit::eventually("the question waits", || async {
            (store.connections().idle == 0).then_some(())
        })
        .await;
        let error = store.feeds().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("connections"), "{error}");
        blocker.run("rollback").await;
        question.await.unwrap().unwrap();
    });
}

/// A role's own limit is not ours: it would stop sweeping and claiming of a backlog for ever.
#[test]
fn the_limit_of_a_role_does_not_bind_our_sessions() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let session = backend.try_session().await.unwrap();
        let name = backend.database().name();
        session
            .run(&format!(
                "alter database {name} set statement_timeout = '25ms'"
            ))
            .await;
        let store = store(&backend, 1).await;
        store.create_feed(&orders()).await.unwrap();
        store.sweep(SweepGroup(0)).await.unwrap();
        assert_eq!(store.feeds().await.unwrap().len(), 1);
    });
}

/// A pgbouncer in front of the server of this test run.
struct Bouncer {
    process: Child,
    port: u16,
    _dir: TempDir,
}

impl Bouncer {
    fn start(backend: &PostgresBackend, settings: &str) -> Bouncer {
        let dir = tempfile::tempdir().unwrap();
        let port = changefeed_testkit::postgres::free_port();
        let server = backend.database().server_url();
        let server_port = server
            .rsplit_once(':')
            .and_then(|(_, rest)| rest.split('/').next())
            .unwrap();
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(
            &file,
            format!(
                "[databases]\n* = host=127.0.0.1 port={server_port} user=tester\n[pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n{settings}\n"
            ),
        )
        .unwrap();
        let installed = Path::new("/usr/sbin/pgbouncer");
        let mut program = match installed.exists() {
            true => Command::new(installed),
            false => Command::new("pgbouncer"),
        };
        // It refuses to be root, and then has to be somebody who may read its file.
        if rustix::process::getuid().is_root() {
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(dir.path(), all).unwrap();
            program.args(["-u", "nobody"]);
        }
        let process = program
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer is installed by ./test");
        Bouncer {
            process,
            port,
            _dir: dir,
        }
    }

    /// What a store says to it, as soon as it listens.
    async fn connect(
        &self,
        backend: &PostgresBackend,
        options: &str,
    ) -> changefeed_core::Result<PostgresStore> {
        let url = format!(
            "postgres://tester:any@127.0.0.1:{}/{}{options}",
            self.port,
            backend.database().name()
        );
        changefeed_testkit::eventually("pgbouncer listens", || async {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()
        })
        .await;
        PostgresStore::connect(&url).await
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Settings of a session are lost between two transactions there, and seen by other clients.
#[test]
fn a_pooler_that_hands_out_transactions_is_refused() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        for settings in [
            "pool_mode = transaction",
            "pool_mode = transaction\nignore_startup_parameters = options",
        ] {
            let bouncer = Bouncer::start(&backend, settings);
            let error = bouncer.connect(&backend, "").await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
            assert!(error.to_string().contains("pooler"), "{error}");
        }
    });
}

/// Clients that keep their session are as good as connected directly, once the URL says so.
#[test]
fn a_pooler_that_hands_out_sessions_is_used_when_the_url_says_so() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let bouncer = Bouncer::start(
            &backend,
            "pool_mode = session\nignore_startup_parameters = options\ndefault_pool_size = 20",
        );
        let store = bouncer.connect(&backend, "?pooler=session").await.unwrap();
        store.migrate().await.unwrap();
        store.create_feed(&orders()).await.unwrap();
        assert_eq!(store.feeds().await.unwrap().len(), 1);
    });
}

/// A server process that is stopped still acknowledges what it is sent, so no timeout of TCP ends
/// the wait. The call gives up, its connection is not used again, and the next one works.
#[test]
fn a_frozen_server_process_costs_one_call() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = store(&backend, 1).await;
        store.create_feed(&orders()).await.unwrap();
        let session = backend.try_session().await.unwrap();
        store.sweep(SweepGroup(0)).await.unwrap();
        let rows = session
            .query(
                "select pid::text from pg_stat_activity where application_name = 'changefeed' \
                 and datname = current_database() and query like '%changefeed.sweep%'",
            )
            .await
            .unwrap();
        let frozen = Frozen::stop(rows[0][0].as_deref().unwrap().parse().unwrap());
        session.run(&backend.words().publish(37, 0, 1)).await;
        let asked = Instant::now();
        let error = store.sweep(SweepGroup(0)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains("did not answer"), "{error}");
        assert!(asked.elapsed() < Duration::from_secs(60));
        let report = store.sweep(SweepGroup(0)).await.unwrap();
        assert_eq!(report.changes(), 1);
        drop(frozen);
    });
}

/// Readers wait for what one session hears. Stopped, it hears nothing and nobody is told: another one
/// has to take its place, or every long poll lasts its full time.
#[test]
fn a_frozen_listener_is_replaced() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = store(&backend, 1).await;
        let feed = store.create_feed(&orders()).await.unwrap();
        let session = backend.try_session().await.unwrap();
        let mut readers = store.listen(&feed, ShardId(0));
        let listeners = "select pid::text from pg_stat_activity where datname = current_database() \
                         and query = 'listen changefeed' and state = 'idle'";
        let heard = changefeed_testkit::eventually("a session listens", || async {
            session.query(listeners).await.unwrap().pop()
        })
        .await;
        let frozen = Frozen::stop(heard[0].as_deref().unwrap().parse().unwrap());
        readers.look();
        session.run(&backend.words().publish(37, 0, 1)).await;
        store.sweep(SweepGroup(0)).await.unwrap();
        let woken = tokio::time::timeout(Duration::from_secs(60), readers.news()).await;
        assert!(woken.is_ok(), "nobody was told");
        drop(frozen);
    });
}

/// A process that is stopped until this is dropped.
pub(crate) struct Frozen(rustix::process::Pid);

impl Frozen {
    pub(crate) fn stop(pid: i32) -> Frozen {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}
