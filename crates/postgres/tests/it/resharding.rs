//! Another number of shards, with what only PostgreSQL has: snapshots, partitions, dumps, and a server that is killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Content, Cursor, DEFAULT_START, Feed, FeedStore, Kind, NewFeed, Op, Remedy, ShardId,
    Store, SweepGroup, TableName, seek_consumer,
};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{
    Backend, PostgresBackend, PostgresSession, Session, captured, read_all, settle,
};
use changefeed_testkit::postgres::{Cluster, Database};
use changefeed_testkit::run;
use serde_json::Value;

use crate::numbering::restored::{dump, psql};

const GROUP: SweepGroup = SweepGroup(0);

fn spread(table: &str, shards: i16) -> NewFeed {
    let mut new = captured("spread", TableName::unqualified(table), Some("id"), shards);
    assert!(new.source.as_mut().unwrap().keep_images(true));
    new
}

async fn count(store: &dyn Store, feed: &Feed, shard: i16) -> usize {
    settle(store, GROUP).await;
    read_all(store, feed, shard, 100).await.len()
}

/// Who has written to the table is waited for, and whoever comes later writes to the new shards: whatever its snapshot,
/// and in a session that has run the old function before.
#[test]
fn a_transaction_writes_to_the_shards_of_one_generation() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let store = backend.installed().await;
        let (before, old, late) = (
            backend.session().await,
            backend.session().await,
            backend.session().await,
        );
        before.run("create table t (id int primary key)").await;
        let feed = store.create_feed(&spread("t", 1)).await.unwrap();
        for session in [&before, &late] {
            session.run("insert into t values (-1)").await;
            session.run("delete from t where id = -1").await;
        }
        old.run("begin isolation level repeatable read").await;
        old.run("select count(*) from t").await;
        late.run("begin").await;
        late.run("select nextval('changefeed.change_id')").await;
        before.run("begin").await;
        before.run("insert into t values (1)").await;
        let resharding = store.reshard(&feed, 1 + 1);
        let writing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            before.run("insert into t values (2)").await;
            before.run("commit").await;
        };
        let (feed, ()) = tokio::join!(resharding, writing);
        let feed = feed.unwrap();
        assert_eq!(count(&*store, &feed, 0).await, 6, "both of the open one");
        old.run("insert into t values (10), (11)").await;
        late.run("insert into t values (12)").await;
        old.run("commit").await;
        late.run("commit").await;
        assert_eq!(count(&*store, &feed, 0).await, 6);
        assert_eq!(count(&*store, &feed, 1).await, 2);
        assert_eq!(count(&*store, &feed, 2).await, 1);
    });
}

/// What somebody reads whose statement is refused.
async fn refused(session: &dyn Session, sql: &str) -> String {
    session.execute(sql).await.unwrap_err().to_string()
}

/// Whoever has published to the feed by hand is waited for, and whoever comes later is refused, whatever its snapshot:
/// readers of a closed shard have gone.
#[test]
fn nothing_is_published_by_hand_after_the_end_of_a_shard() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let store = backend.installed().await;
        let (open, old, late, both) = (
            backend.session().await,
            backend.session().await,
            backend.session().await,
            backend.session().await,
        );
        open.run("create table t (id int primary key)").await;
        let feed = store.create_feed(&spread("t", 1)).await.unwrap();
        let publish = |shard: i16, id: i64| backend.words().publish(feed.id.0, shard, id);
        for session in [&old, &late] {
            session.run(&publish(0, fastrand::i64(1000..1 << 40))).await;
        }
        old.run("begin isolation level repeatable read").await;
        old.run("select count(*) from t").await;
        late.run("begin").await;
        late.run("select nextval('changefeed.change_id')").await;
        open.run("begin isolation level repeatable read").await;
        open.run(&publish(0, 1)).await;
        // It ends, and not in a deadlock, although the open one also writes to the table.
        let resharding = store.reshard(&feed, 2);
        let writing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            open.run("insert into t values (1)").await;
            open.run(&publish(0, 3)).await;
            open.run("commit").await;
        };
        let (resharded, ()) = tokio::join!(resharding, writing);
        let feed = resharded.unwrap();
        assert_eq!(count(&*store, &feed, 0).await, 5);
        let said = refused(&*old, &publish(0, 4)).await;
        assert!(said.contains("could not serialize"), "{said}");
        old.run("rollback").await;
        // Who has written to the table and then publishes is refused rather than waited for for ever.
        both.run("begin").await;
        both.run("insert into t values (2)").await;
        let resharding = store.reshard(&feed, 3);
        let writing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let said = refused(&*both, &publish(1, 5)).await;
            assert!(said.contains("are being changed"), "{said}");
            both.run("rollback").await;
        };
        let (resharded, ()) = tokio::join!(resharding, writing);
        let feed = resharded.unwrap();
        let said = refused(&*late, &publish(1, 6)).await;
        assert!(said.contains("is closed"), "{said}");
        late.run("rollback").await;
        late.run(&publish(3, 7)).await;
        assert_eq!(count(&*store, &feed, 1).await, 0);
        assert_eq!(count(&*store, &feed, 3).await, 1);
    });
}

/// Also of one that is written to directly; and somebody who does not end is told of, and nothing has changed.
#[test]
fn writers_of_a_partition_are_waited_for() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table t (id int primary key) partition by range (id)")
            .await;
        app.run("create table t_1 partition of t for values from (0) to (100)")
            .await;
        let feed = store.create_feed(&spread("t", 1)).await.unwrap();
        app.run("begin").await;
        app.run("insert into t_1 values (1)").await;
        let error = store.reshard(&feed, 2).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error:?}");
        assert_eq!(store.feeds().await.unwrap()[0], feed);
        app.run("commit").await;
        let feed = store.reshard(&feed, 2).await.unwrap();
        app.run("insert into t_1 values (2)").await;
        app.run("truncate t").await;
        assert_eq!(count(&*store, &feed, 0).await, 1);
        assert_eq!(count(&*store, &feed, 1).await, 2);
        assert_eq!(count(&*store, &feed, 2).await, 1);
    });
}

/// A dump of a feed with closed shards whose last changes have no numbers yet is restored into another cluster: nothing is
/// over before it was numbered there, and the feed goes on in its newest shards.
#[test]
fn closed_shards_are_restored_with_what_waits_in_them() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table t (id int primary key, n int)").await;
        let feed = store.create_feed(&spread("t", 1)).await.unwrap();
        app.run("insert into t values (1, 1)").await;
        settle(&*store, GROUP).await;
        app.run("update t set n = 2").await;
        store.reshard(&feed, 2).await.unwrap();
        app.run("update t set n = 3").await;
        let cluster = Cluster::start_new();
        let target = Database::on(&cluster.url()).await;
        psql(target.url(), &dump(&backend.url()));

        let store = PostgresStore::connect(target.url()).await.unwrap();
        let restored = PostgresSession::connect(target.url()).await.unwrap();
        let restored: &dyn Session = &restored;
        let feed = store.feeds().await.unwrap().remove(0);
        let first = || store.read(&feed, ShardId(0), After::First, 10);
        assert!(!first().await.unwrap().closed);
        restored.run("update t set n = 4").await;
        for _ in 0..3 {
            settle(&store, GROUP).await;
        }
        let page = first().await.unwrap();
        assert_eq!((page.changes.len(), page.closed), (2, true));
        let mut copy = Copy {
            at: BTreeMap::new(),
            rows: BTreeMap::new(),
        };
        assert!(copy.read(&store).await);
        assert_eq!(copy.rows[&1]["n"], 4);
        assert_eq!(count(&store, &feed, 2).await, 2);
    });
}

/// A reader that keeps a copy, generation by generation, and its places as consumer `me`.
struct Copy {
    at: BTreeMap<ShardId, Cursor>,
    rows: BTreeMap<i64, Value>,
}

impl Copy {
    /// Reads everything that there is. False if the server went away in between.
    async fn read(&mut self, store: &dyn Store) -> bool {
        let me = "me".parse().unwrap();
        let Some(feed) = gone(store.feeds().await).map(|mut all| all.remove(0)) else {
            return false;
        };
        for shards in feed.generations() {
            let mut over = true;
            for shard in shards {
                let from = *self
                    .at
                    .entry(shard)
                    .or_insert(Cursor::Number(DEFAULT_START));
                let read = store.read(&feed, shard, from.into(), 10_000).await;
                let Some(page) = gone(read) else {
                    return false;
                };
                for change in &page.changes {
                    self.apply(change);
                }
                self.at.insert(shard, page.next);
                over &= page.closed;
                // Where it was before is not known when an answer was lost.
                let stored = seek_consumer(store, &me, &feed, shard, page.next).await;
                if gone(stored).is_none() {
                    return false;
                }
            }
            if !over {
                return true;
            }
        }
        true
    }

    fn apply(&mut self, change: &changefeed_core::Change) {
        let Content::Images { old, new } = &change.content else {
            panic!("{change:?}");
        };
        let row = |json: &Option<Box<serde_json::value::RawValue>>| -> Value {
            json.as_ref().map_or(Value::Null, |json| {
                serde_json::from_str(json.get()).unwrap()
            })
        };
        let (old, new) = (row(old), row(new));
        let id = [&old, &new]
            .iter()
            .find_map(|row| row["id"].as_i64())
            .unwrap();
        let had = self.rows.remove(&id).unwrap_or(Value::Null);
        assert_eq!(had, old, "{change:?}");
        assert_eq!(change.op == Some(Op::Delete), new == Value::Null);
        if new != Value::Null {
            self.rows.insert(id, new);
        }
    }
}

/// The answer, if the server was there to give one.
fn gone<T>(answer: changefeed_core::Result<T>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) if error.kind().remedy() == Remedy::Retry => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Writers, trims and other numbers of shards, and a server that is killed in the middle of all of it: the old row of
/// every change is the one that the copy has, and in the end the copy is the table.
#[test]
fn images_hold_through_kills_trims_and_other_numbers_of_shards() {
    run(async {
        let cluster = Cluster::start_new();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&cluster.url()).await);
        let store = backend.installed().await;
        backend
            .session()
            .await
            .run("create table t (id int primary key, n int not null)")
            .await;
        let feed = store.create_feed(&spread("t", 2)).await.unwrap();
        let me = "me".parse().unwrap();
        for shard in &feed.shards {
            let start = Cursor::Number(DEFAULT_START);
            let stored = store.store_cursor(&me, &feed, shard.shard, None, start);
            stored.await.unwrap();
        }
        let mut copy = Copy {
            at: BTreeMap::new(),
            rows: BTreeMap::new(),
        };
        let (mut trimmed, mut changed) = (0, 0);
        for (round, shards) in [3, 1, 4, 2, 5].into_iter().enumerate() {
            let working = async {
                loop {
                    let _ = store.sweep(GROUP).await;
                    copy.read(&*store).await;
                    let now = feed_now(&*store, &feed).await;
                    let trim = store.trim(&now, Duration::ZERO.into(), 50);
                    trimmed += gone(trim.await).map_or(0, |t| t.removed);
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
            };
            let writing = write(&backend, round);
            let killing = async {
                tokio::time::sleep(Duration::from_millis(400)).await;
                let resharding = store.reshard(&feed, shards);
                let kill = async {
                    // Sometimes before, sometimes in the middle, sometimes after.
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..60))).await;
                    cluster.kill_server();
                };
                let (outcome, ()) = tokio::join!(resharding, kill);
                changed += i32::from(gone(outcome).is_some());
            };
            tokio::select! {
                never = working => match never {},
                never = writing => match never {},
                () = killing => {}
            }
            cluster.start();
        }
        println!("{changed} of 5 changes of the number of shards, {trimmed} changes trimmed");
        let session = backend.session().await;
        // A reader needs one look for each generation that it has not seen.
        for _ in 0..8 {
            while gone(store.sweep(GROUP).await).is_none_or(|s| s.changes() > 0) {}
            while !copy.read(&*store).await {}
        }
        let table = session
            .query("select id, n from t order by id")
            .await
            .unwrap();
        let table: Vec<String> = table
            .iter()
            .map(|row| format!("{}/{}", row[0].as_ref().unwrap(), row[1].as_ref().unwrap()))
            .collect();
        let rows = copy.rows.values();
        let rows: Vec<String> = rows
            .map(|row| format!("{}/{}", row["id"], row["n"]))
            .collect();
        assert_eq!(rows, table);
        assert!(trimmed > 0);
    });
}

/// The feed as it is now, or as it was while nobody answers.
async fn feed_now(store: &dyn Store, feed: &Feed) -> Feed {
    let found = gone(store.feeds().await).map(|mut all| all.remove(0));
    found.unwrap_or_else(|| feed.clone())
}

/// Writes for ever, whatever fails.
async fn write(backend: &Arc<dyn Backend>, round: usize) -> std::convert::Infallible {
    let mut turn = 0;
    loop {
        let Ok(session) = backend.try_session().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let session: &dyn Session = &*session;
        loop {
            turn += 1;
            let id = fastrand::i32(0..20);
            let sql = match fastrand::i32(0..4) {
                0 => format!("delete from t where id between {id} and {}", id + 2),
                1 => format!("update t set n = {turn} where id >= {id}"),
                _ => format!(
                    "insert into t values ({id}, {round}) on conflict (id) do update set n = {turn}"
                ),
            };
            if session.execute(&sql).await.is_err() {
                break;
            }
        }
    }
}
