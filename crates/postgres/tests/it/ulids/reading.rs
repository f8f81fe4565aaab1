//! Reading ULID feeds on PostgreSQL: how quickly, with how many connections, and the upgrade.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{
    After, Cursor, FeedStore, ShardId, Source, Store, TableName, Ulid, UlidOptions, WakeStore,
};
use changefeed_engine::{ShardPages, follow};
use changefeed_testkit::backend::{is_woken, name, read_all};
use changefeed_testkit::ulids::{FEED, feed_of_events};
use changefeed_testkit::{eventually, run};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::ulids::support::{insert, options, scene, write};

/// Ordered and compared as bytes are, in whatever schema and however they are called.
#[test]
fn ulids_as_uuid_and_names_that_need_quotes() {
    run(async {
        let scene = scene().await;
        scene
            .admin
            .run(
                "create schema \"Other\"; create table \"Other\".\"Weird \"\"Table\" \
                 (\"select\" bigint, \"UL id\" uuid, note text, primary key (\"select\", \"UL id\"))",
            )
            .await;
        let mut new = feed_of_events(2);
        new.id = None;
        new.name = name("weird");
        new.source = Some(Source::Ulid {
            feed: FEED,
            table: TableName::qualified("Other", "Weird \"Table"),
            shard_column: "select".into(),
            ulid_column: "UL id".into(),
        });
        let feed = scene.store.create_feed(&new).await.unwrap();
        let mut given = Vec::new();
        for n in 0..5 {
            let shard = UlidOptions::new(FEED, 1);
            let mut transaction = scene.store.begin_ulid(&shard).await.unwrap();
            for ulid in transaction.ulids(2).unwrap() {
                transaction
                    .execute(
                        "insert into \"Other\".\"Weird \"\"Table\" \
                         values (1, encode($1, 'hex')::uuid, $2)",
                        &[&ulid.to_bytes().as_slice(), &format!("{n}")],
                    )
                    .await
                    .unwrap();
                given.push(Cursor::Ulid(ulid));
            }
            transaction.commit().await.unwrap();
        }
        let read: Vec<Cursor> = read_all(&scene.store, &feed, 1, 3)
            .await
            .iter()
            .map(|change| change.cursor)
            .collect();
        assert_eq!(read, given);
        let page = scene
            .store
            .read(&feed, ShardId(1), After::Last, 10)
            .await
            .unwrap();
        assert_eq!(page.next, given[9]);
        let states = scene.store.shard_states(&feed).await.unwrap();
        assert_eq!(states[1].last, given[9]);
    });
}

/// A page costs a page, however many rows there are.
#[test]
fn a_page_is_read_by_the_index() {
    run(async {
        let scene = scene().await;
        scene
            .admin
            .run(&format!(
                "begin; select changefeed.begin_ulid_transaction('{FEED}', 0); \
                 insert into event select 0, \
                 changefeed.ulid_sequence(nextval('changefeed.sequence')), 'x' \
                 from generate_series(1, 100000); \
                 select changefeed.commit_ulid_transaction(); commit; analyze event"
            ))
            .await;
        let last = scene.store.read(&scene.feed, ShardId(0), After::Last, 1);
        let Cursor::Ulid(last) = last.await.unwrap().next else {
            panic!("no ULID");
        };
        let middle = Cursor::Ulid(Ulid::from_parts(last.high(), last.low() - 50_000));
        let before = scene.admin.number(ROWS_READ).await;
        for after in [After::First, After::Last, middle.into()] {
            for _ in 0..10 {
                let page = scene.store.read(&scene.feed, ShardId(0), after, 10).await;
                page.unwrap();
            }
        }
        // What is counted arrives a little later.
        let read = eventually("the server counts", || async {
            let read = scene.admin.number(ROWS_READ).await - before;
            (read >= 200).then_some(read)
        })
        .await;
        assert!(read < 2000, "{read} rows were read for 210");
    });
}

const ROWS_READ: &str = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint \
     from pg_stat_user_tables where relname = 'event'";

/// Measured from the moment the commit has returned.
#[test]
fn a_follower_sees_a_commit_within_100_ms() {
    run(async {
        let scene = scene().await;
        let store: Arc<dyn Store> = Arc::new(scene.other_store().await);
        let pages = ShardPages {
            store,
            feed: scene.feed.clone(),
            shard: ShardId(0),
            limit: 100,
        };
        let mut changes = Box::pin(follow(pages, After::First, None));
        let mut times = Vec::new();
        for round in 0..15 {
            // Sometimes it has been quiet for so long that it looks more rarely.
            if round % 5 == 4 {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            let writer = scene.store.clone();
            let written = tokio::spawn(async move {
                let ulid = write(&writer, "x").await;
                (ulid, Instant::now())
            });
            let seen = changes.next().await.unwrap().unwrap();
            let now = Instant::now();
            let (ulid, committed) = written.await.unwrap();
            assert_eq!(seen.cursor, Cursor::Ulid(ulid));
            times.push(now.saturating_duration_since(committed));
        }
        times.sort_unstable();
        let (median, longest) = (times[7], times[14]);
        eprintln!(
            "from commit to follower: median {} ms, longest {} ms",
            median.as_millis(),
            longest.as_millis()
        );
        assert!(median < Duration::from_millis(100), "{times:?}");
    });
}

/// Ten and more at once, on a pool of ten connections, for every place to begin.
#[test]
fn many_readers_at_once_do_not_starve_each_other() {
    run(async {
        let scene = scene().await;
        write(&scene.store, "x").await;
        let mut readers = JoinSet::new();
        for n in 0..60 {
            let (store, feed) = (scene.store.clone(), scene.feed.clone());
            readers.spawn(async move {
                let after = match n % 3 {
                    0 => After::First,
                    1 => After::Last,
                    _ => After::Time(0),
                };
                let page = store.read(&feed, ShardId(0), after, 10).await;
                page.unwrap();
                store.shard_states(&feed).await.unwrap();
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(20), readers.join_all()).await;
        assert!(all.is_ok(), "readers wait for each other's connections");
    });
}

/// One looks for all.
#[test]
fn two_hundred_waiters_cost_one_connection() {
    run(async {
        let scene = scene().await;
        let connections = async || {
            scene
                .admin
                .number(
                    "select count(*) from pg_stat_activity where datname = current_database() \
                     and pid <> pg_backend_pid() and backend_type = 'client backend'",
                )
                .await
        };
        let store = scene.other_store().await;
        let before = connections().await;
        let mut waiters: Vec<_> = (0..200)
            .map(|_| store.listen(&scene.feed, ShardId(0)))
            .collect();
        for waiter in &mut waiters {
            waiter.look();
        }
        write(&scene.store, "x").await;
        let woken = Instant::now();
        for waiter in &mut waiters {
            assert!(is_woken(waiter).await);
        }
        eprintln!("200 waiters woken in {} ms", woken.elapsed().as_millis());
        let extra = connections().await - before;
        assert!(extra <= 1, "{extra} connections for waiting");
        // Nobody waits, nobody looks.
        drop(waiters);
        let looks = async || {
            scene
                .admin
                .number(
                    "select coalesce(sum(seq_scan + idx_scan), 0)::bigint \
                     from pg_stat_user_tables where relname = 'shard_ulid'",
                )
                .await
        };
        let mut before = -1;
        loop {
            // What is counted arrives up to a second later.
            tokio::time::sleep(Duration::from_millis(1100)).await;
            let now = looks().await;
            if now == before {
                break;
            }
            before = now;
        }
    });
}

/// A reader that waits does not depend on the connections that writers in the queue have taken.
#[test]
fn readers_are_woken_while_writers_queue_in_the_same_store() {
    run(async {
        let scene = scene().await;
        let store = scene.other_store().await;
        let mut holder = scene.store.begin_ulid(&options()).await.unwrap();
        let mut queue = JoinSet::new();
        for n in 0..9 {
            let store = store.clone();
            queue.spawn(async move { write(&store, &format!("queued {n}")).await });
        }
        scene.queued(9).await;
        let mut waiter = store.listen(&scene.feed, ShardId(0));
        waiter.look();
        insert(&mut holder, "held").await;
        holder.commit().await.unwrap();
        assert!(is_woken(&mut waiter).await);
        queue.join_all().await;
        assert_eq!(scene.notes().await.len(), 10);
    });
}
