//! Numbering after a dump was restored: into another cluster, where transaction ids mean nothing, and into the same one.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;

use changefeed_core::{After, Kind, ShardId, Store};
use changefeed_engine::Changefeed;
use changefeed_testkit::backend::{
    Backend, PostgresBackend, PostgresSession, Session, numbers, settle,
};
use changefeed_testkit::postgres::{Cluster, Database, program};
use changefeed_testkit::run;

use super::{GROUP, feed, gapless};

pub(crate) fn psql(url: &str, input: &[u8]) {
    let mut child = program("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    assert!(child.wait().unwrap().success());
}

pub(crate) fn dump(url: &str) -> Vec<u8> {
    let output = program("pg_dump").args(["-d", url]).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// A database with numbered and waiting changes, and one open transaction that a dump misses.
async fn before_the_dump(backend: &Arc<dyn Backend>, store: &dyn Store) -> Box<dyn Session> {
    let (session, open, words) = (
        backend.session().await,
        backend.session().await,
        backend.words(),
    );
    // Higher transaction ids than a new cluster has.
    session
        .run("do $$ begin for i in 1..3000 loop perform pg_current_xact_id(); commit; end loop; end $$")
        .await;
    session.run(&words.publish_many(37, 0, 1..=5)).await;
    open.run("begin").await;
    open.run(&words.publish(37, 0, 999)).await;
    settle(store, GROUP).await;
    session.run(&words.publish_many(37, 0, 6..=8)).await;
    open
}

async fn after_the_restore(url: &str) {
    let store = changefeed_postgres::PostgresStore::connect(url)
        .await
        .unwrap();
    let session = PostgresSession::connect(url).await.unwrap();
    let session: &dyn Session = &session;
    let feed = changefeed_core::FeedStore::feeds(&store).await.unwrap()[0].clone();
    session
        .run("insert into changefeed.change (feed_id, shard, change_id) values (37, 0, 9)")
        .await;
    // A restored database may need one sweep to notice, and one to number.
    for _ in 0..3 {
        settle(&store, GROUP).await;
    }
    for id in 10..15 {
        session
            .run(&format!(
                "insert into changefeed.change (feed_id, shard, change_id) values (37, 0, {id})"
            ))
            .await;
        settle(&store, GROUP).await;
    }
    let found = numbers(&store, &feed, 0).await;
    assert!(gapless(&found), "{found:?}");
    let ids: Vec<i64> = found.iter().map(|(_, id)| *id).collect();
    assert_eq!(ids, (1..15).collect::<Vec<_>>());
}

/// Transaction ids mean nothing in another cluster: a dump is restored into a new one.
#[test]
fn a_dump_restored_into_a_new_cluster_goes_on() {
    run(async {
        let (backend, store, _) = feed().await;
        let open = before_the_dump(&backend, &*store).await;
        let cluster = Cluster::start_new();
        let target = Database::on(&cluster.url()).await;
        psql(target.url(), &dump(&backend.url()));
        after_the_restore(target.url()).await;
        // The database that was dumped goes on, too.
        open.run("commit").await;
        settle(&*store, GROUP).await;
    });
}

/// A reader that is further than the backup goes on without a word, and misses what got those numbers again: only the
/// incarnation tells, once somebody has said that this is a recovery.
#[test]
fn a_reader_that_is_further_than_the_backup_is_told_after_a_recovery() {
    run(async {
        let (backend, store, feed) = feed().await;
        let (session, words) = (backend.session().await, backend.words());
        session.run(&words.publish_many(37, 0, 1..=3)).await;
        settle(&*store, GROUP).await;
        let backup = dump(&backend.url());
        session.run(&words.publish_many(37, 0, 4..=5)).await;
        settle(&*store, GROUP).await;
        let read = store.read(&feed, ShardId(0), After::First, 10);
        let page = read.await.unwrap();
        assert_eq!(page.changes.len(), 5);

        let target = changefeed_testkit::postgres::empty_database().await;
        psql(target.url(), &backup);
        let store: Arc<dyn Store> = Arc::new(
            changefeed_postgres::PostgresStore::connect(target.url())
                .await
                .unwrap(),
        );
        let restored = PostgresSession::connect(target.url()).await.unwrap();
        // Other changes, under the numbers that were lost.
        let restored: &dyn Session = &restored;
        restored.run(&words.publish_many(37, 0, 104..=106)).await;
        for _ in 0..3 {
            settle(&*store, GROUP).await;
        }
        let db = Changefeed::new(store);
        let reader = db.feed(feed.name.as_str()).await.unwrap();
        let reader = reader.expecting(Some(page.incarnation));
        let next = After::Cursor(page.next);
        let missed = reader.read(ShardId(0), next, 10).await.unwrap();
        assert_eq!(missed.changes.len(), 1, "two of the three are missed");
        db.recover().await.unwrap();
        let told = reader.read(ShardId(0), next, 10).await.unwrap_err();
        assert_eq!(told.kind(), Kind::Recovered, "{told:?}");
    });
}

/// A standby that was behind when the primary was lost gives numbers again. Its own sweeps go on, and readers are told after
/// each recovery, however many there are.
#[test]
fn a_reader_of_a_lost_primary_is_told_after_the_standby_was_promoted() {
    run(async {
        let primary = Cluster::start_new();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&primary.url()).await);
        let (store, feed) = backend.feed(37, 1).await;
        let (session, words) = (backend.session().await, backend.words());
        session.run(&words.publish_many(37, 0, 1..=3)).await;
        settle(&*store, GROUP).await;
        let standby = primary.start_standby();
        let url = standby.url_like(&backend.url());
        let there = PostgresSession::connect(&url).await.unwrap();
        let there: &dyn Session = &there;
        // From here on it is behind.
        there.run("select pg_wal_replay_pause()").await;
        session.run(&words.publish_many(37, 0, 4..=5)).await;
        settle(&*store, GROUP).await;
        let read = store.read(&feed, ShardId(0), After::First, 10);
        let page = read.await.unwrap();
        let lost = page.changes.len();
        primary.stop_immediate();
        // What it has received is replayed, so this may be all of it or not: the numbers may be given again.
        there.run("select pg_wal_replay_resume()").await;
        there.run("select pg_promote()").await;

        let store = changefeed_postgres::PostgresStore::connect(&url).await;
        let store: Arc<dyn Store> = Arc::new(store.unwrap());
        there.run(&words.publish_many(37, 0, 104..=108)).await;
        for _ in 0..3 {
            settle(&*store, GROUP).await;
        }
        let found = numbers(&*store, &feed, 0).await;
        assert!(gapless(&found), "{found:?}");
        assert!(found.len() >= 8 && found.len() <= lost + 5, "{found:?}");
        let db = Changefeed::new(store);
        let reader = db.feed(feed.name.as_str()).await.unwrap();
        let mut life = page.incarnation;
        for _ in 0..2 {
            let reader = reader.clone().expecting(Some(life));
            reader.read(ShardId(0), After::First, 10).await.unwrap();
            life = db.recover().await.unwrap();
            let told = reader.read(ShardId(0), After::First, 10).await;
            assert_eq!(told.unwrap_err().kind(), Kind::Recovered);
        }
        // That of the first life is not taken for that of a later one.
        let reader = reader.expecting(Some(page.incarnation));
        let told = reader.read(ShardId(0), After::First, 10).await;
        assert_eq!(told.unwrap_err().kind(), Kind::Recovered);
    });
}

/// The same cluster, so the ids still mean something: nothing may be numbered twice.
#[test]
fn a_dump_restored_into_the_same_cluster_goes_on() {
    run(async {
        let database = changefeed_testkit::postgres::empty_database().await;
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let (store, _) = backend.feed(37, 1).await;
        let open = before_the_dump(&backend, &*store).await;
        psql(database.url(), &dump(&backend.url()));
        after_the_restore(database.url()).await;
        open.run("commit").await;
    });
}

/// What a restore looks like from inside: the stored identifier is not the cluster's. Done to a
/// running system, with higher transaction ids still to come, nothing is lost or doubled either.
#[test]
fn a_foreign_system_identifier_is_noticed_once() {
    run(async {
        let (backend, store, feed) = feed().await;
        let (session, words) = (backend.session().await, backend.words());
        session.run(&words.publish_many(37, 0, 1..=3)).await;
        settle(&*store, GROUP).await;
        session.run(&words.publish_many(37, 0, 4..=6)).await;
        session
            .run("update changefeed.cluster set system_identifier = system_identifier + 1")
            .await;
        for _ in 0..3 {
            settle(&*store, GROUP).await;
        }
        session.run(&words.publish(37, 0, 7)).await;
        settle(&*store, GROUP).await;
        let found = numbers(&*store, &feed, 0).await;
        assert!(gapless(&found));
        assert_eq!(
            found.iter().map(|(_, id)| *id).collect::<Vec<_>>(),
            (1..=7).collect::<Vec<_>>()
        );
    });
}
