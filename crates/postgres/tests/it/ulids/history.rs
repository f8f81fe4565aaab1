//! Promise 6 by histories: many writers on one shard with every fate, readers that page all the
//! time, and a checker.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use changefeed_core::{After, Cursor, Feed, ShardId, Store, Ulid};
use changefeed_engine::{ShardPages, follow};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend, PostgresSession, Session};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::ulids::{FEED, Writer, Written, check};
use changefeed_testkit::{run, soaking};
use fastrand::Rng;
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::ulids::process;
use crate::ulids::support::{Scene, scene, scene_on};

/// Short, so that locks are burned often; a machine that stands still for longer makes some
/// innocent writers fail, and that is allowed.
const TIMEOUT: Duration = Duration::from_millis(250);

#[test]
fn promise_6_ulids_increase_for_every_observer_whatever_happens_to_writers() {
    run(async {
        let scene = scene().await;
        history(scene, if soaking() { 300 } else { 6 }, |_| ()).await;
    });
}

/// A step forward looks like silence, and a step back like a sign of life: transactions fail or wait, and that is all.
#[test]
fn promise_6_ulids_increase_while_the_clock_of_the_server_steps() {
    run(async {
        let cluster = Cluster::start_with_clock();
        let scene = scene_on(PostgresBackend::on(&cluster.url()).await).await;
        history(scene, if soaking() { 300 } else { 3 }, |rng| {
            cluster.set_clock(rng.i64(-20..=20));
        })
        .await;
    });
}

async fn history(scene: Scene, seconds: u64, step: impl Fn(&mut Rng)) {
    let seed = std::env::var("CHANGEFEED_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    eprintln!("CHANGEFEED_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let scene = Arc::new(scene);
    let duration = Duration::from_secs(seconds);
    let stop = Arc::new(AtomicBool::new(false));
    let over = Arc::new(AtomicBool::new(false));

    let mut readers = JoinSet::new();
    for n in 0..4 {
        let (scene, over) = (Arc::clone(&scene), Arc::clone(&over));
        let seed = rng.u64(..);
        readers.spawn(async move {
            match n {
                0 => plain_reader(&scene, &over).await,
                1 => follower(&scene, &over).await,
                _ => reader(&scene, &over, seed).await,
            }
        });
    }

    let mut writers: JoinSet<Vec<Written>> = JoinSet::new();
    for n in 0..8 {
        let store = scene.other_store().await;
        let mut writer = Writer::new(store, &format!("task{n}"), rng.u64(..), TIMEOUT);
        let stop = Arc::clone(&stop);
        writers.spawn(async move {
            let mut told = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                told.push(writer.write().await);
            }
            told
        });
    }
    // Processes that are killed with -9 in the middle of something, one after the other.
    for n in 0..2 {
        let (url, stop, seed) = (scene.backend.url(), Arc::clone(&stop), rng.u64(..));
        writers.spawn_blocking(move || doomed(&url, &format!("process{n}"), &stop, seed));
    }
    // Holders by plain SQL that fall silent, and wake up when they are judged dead.
    let mut silent: JoinSet<()> = JoinSet::new();
    let refused = Arc::new(AtomicUsize::new(0));
    for n in 0..2 {
        let (scene, stop, seed) = (Arc::clone(&scene), Arc::clone(&stop), rng.u64(..));
        let refused = Arc::clone(&refused);
        silent.spawn(async move { sleeper(&scene, n, &stop, &refused, seed).await });
    }

    // Meanwhile sessions are terminated at random.
    let began = Instant::now();
    // However slow the machine is, enough has to happen.
    let enough = async || {
        let rows = scene.admin.number("select count(*) from event").await;
        rows > 100 && refused.load(Ordering::Relaxed) > 0
    };
    while began.elapsed() < duration || !enough().await {
        tokio::time::sleep(Duration::from_millis(rng.u64(20..200))).await;
        step(&mut rng);
        scene
            .admin
            .run(
                "select pg_terminate_backend(pid) from (select pid from pg_stat_activity \
                     where datname = current_database() and pid <> pg_backend_pid() \
                     and application_name like 'changefeed%' and query like '%event%' \
                     order by random() limit 1) t",
            )
            .await;
    }
    stop.store(true, Ordering::Relaxed);
    silent.join_all().await;
    let burned = refused.load(Ordering::Relaxed);
    let told: Vec<Written> = writers.join_all().await.into_iter().flatten().collect();
    // Sessions of clients that are gone may still be about to commit.
    scene.unlocked().await;
    over.store(true, Ordering::Relaxed);
    let table = rows(&scene, 0).await;
    let seen = readers.join_all().await;

    let mut fates: HashMap<String, usize> = HashMap::new();
    for written in &told {
        *fates.entry(format!("{:?}", written.fate)).or_default() += 1;
    }
    eprintln!(
        "{} rows, {fates:?}, {} incidents, {burned} zombies refused",
        table.len(),
        scene.incidents().await
    );
    let of_process = |name: &str| name.starts_with("process");
    let found = check(&table, &told, &seen, of_process);
    assert!(found.is_empty(), "seed {seed}: {found:#?}");
    // All shards of a transaction are committed, or none.
    let second = rows(&scene, 1).await;
    assert!(!second.is_empty());
    let both = |note: &str| {
        note.split('/')
            .next()
            .is_some_and(|name| name.ends_with('+'))
    };
    let first: BTreeSet<&str> = table
        .iter()
        .map(|(_, note)| &**note)
        .filter(|note| both(note))
        .collect();
    let notes: BTreeSet<&str> = second.iter().map(|(_, note)| &**note).collect();
    assert_eq!(first, notes, "seed {seed}");
    let told: Vec<Written> = told.into_iter().filter(|t| both(&t.name)).collect();
    let found = check(&second, &told, &[], of_process);
    assert!(
        found.is_empty(),
        "seed {seed}, the second shard: {found:#?}"
    );
    assert!(scene.incidents().await > 0);
}

async fn rows(scene: &Scene, shard: i32) -> Vec<(Ulid, String)> {
    scene
        .admin
        .query(&format!(
            "select encode(ulid, 'hex'), note from event where shard = {shard}"
        ))
        .await
        .unwrap()
        .into_iter()
        .map(|mut row| {
            let note = row.pop().unwrap().unwrap();
            let value = u128::from_str_radix(&row.pop().unwrap().unwrap(), 16).unwrap();
            (Ulid::from_bytes(value.to_be_bytes()), note)
        })
        .collect()
}

fn ulid(cursor: Cursor) -> Ulid {
    match cursor {
        Cursor::Ulid(ulid) => ulid,
        other => panic!("not a ULID: {other}"),
    }
}

/// Pages of random sizes through the store.
async fn reader(scene: &Scene, over: &AtomicBool, seed: u64) -> Vec<Ulid> {
    let (store, mut rng) = (scene.other_store().await, Rng::with_seed(seed));
    let (mut seen, mut after) = (Vec::new(), After::First);
    loop {
        let over = over.load(Ordering::Relaxed);
        let size = rng.usize(1..20);
        let page = match store_read(&store, &scene.feed, after, size).await {
            Some(page) => page,
            None => continue,
        };
        seen.extend(page.changes.iter().map(|change| ulid(change.cursor)));
        after = page.next.into();
        if page.changes.is_empty() {
            if over {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn store_read(
    store: &PostgresStore,
    feed: &Feed,
    after: After,
    size: usize,
) -> Option<changefeed_core::Page> {
    // Its session may be terminated like any other.
    changefeed_core::FeedStore::read(store, feed, ShardId(0), after, size)
        .await
        .ok()
}

/// By plain SQL.
async fn plain_reader(scene: &Scene, over: &AtomicBool) -> Vec<Ulid> {
    let session = PostgresSession::connect(&scene.backend.url())
        .await
        .unwrap();
    let (mut seen, mut cursor) = (Vec::new(), "00".repeat(16));
    loop {
        let over = over.load(Ordering::Relaxed);
        let rows = session
            .query(&format!(
                "select encode(ulid, 'hex') from event where shard = 0 and ulid > '\\x{cursor}' \
                 order by ulid limit 10"
            ))
            .await
            .unwrap();
        if rows.is_empty() && over {
            return seen;
        }
        for row in rows {
            cursor = row[0].clone().unwrap();
            let value = u128::from_str_radix(&cursor, 16).unwrap();
            seen.push(Ulid::from_bytes(value.to_be_bytes()));
        }
    }
}

/// As an application follows.
async fn follower(scene: &Scene, over: &AtomicBool) -> Vec<Ulid> {
    let store: Arc<dyn Store> = Arc::new(scene.other_store().await);
    let pages = ShardPages {
        store,
        feed: scene.feed.clone(),
        shard: ShardId(0),
        limit: 10,
    };
    let mut changes = Box::pin(follow(pages, After::First, None));
    let mut seen = Vec::new();
    loop {
        let over = over.load(Ordering::Relaxed);
        match tokio::time::timeout(Duration::from_secs(1), changes.next()).await {
            Ok(change) => seen.push(ulid(change.unwrap().unwrap().cursor)),
            Err(_) if over => return seen,
            Err(_) => {}
        }
    }
}

/// Writers in processes that are killed; what the last transaction of each came to nobody knows.
fn doomed(url: &str, name: &str, stop: &AtomicBool, seed: u64) -> Vec<Written> {
    let mut rng = Rng::with_seed(seed);
    let mut told = Vec::new();
    for life in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut process = process::start(url, Stdio::null());
        let timeout = TIMEOUT.as_millis();
        let (input, seed) = (process.child().stdin.as_mut().unwrap(), rng.u64(..));
        writeln!(input, "write {name}-{life} {seed} {timeout} 1000000").unwrap();
        let output = process.child().stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines
                .filter_map(|line| line.parse::<Written>().ok())
                .collect::<Vec<Written>>()
        });
        std::thread::sleep(Duration::from_millis(rng.u64(200..800)));
        // Some are frozen before that, for longer than the timeout, and go on.
        if rng.bool() {
            process.freeze();
            std::thread::sleep(2 * TIMEOUT);
            process.thaw();
            std::thread::sleep(Duration::from_millis(rng.u64(..300)));
        }
        process.kill();
        told.extend(reader.join().unwrap());
    }
    told
}

/// Returns how often it was judged dead and refused.
async fn sleeper(
    scene: &Scene,
    number: usize,
    stop: &AtomicBool,
    refused: &AtomicUsize,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(100..700))).await;
        let session = scene.session().await;
        let before = scene.incidents().await;
        let begun = session
            .execute(&format!(
                "begin; select changefeed.begin_ulid_shards(array['{FEED}', '{FEED}']::uuid[], array[1, 0], 2000); \
                 insert into event values (0, changefeed.new_ulid('{FEED}', 0), 'silent{number}-{turn}+/1/0')"
            ))
            .await;
        if begun.is_err() {
            // Another one was silent meanwhile.
            continue;
        }
        while scene.incidents().await == before && !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let burned = scene.incidents().await != before;
        let ended = session
            .execute("select changefeed.commit_ulid_transaction()")
            .await;
        match ended {
            Err(error) => {
                refused.fetch_add(1, Ordering::Relaxed);
                // The server ends the session of a holder that was silent for too long.
                if error.message.starts_with("connection closed") {
                    continue;
                }
                assert!(error.message.starts_with("CF003: "), "{error}");
            }
            // The incident was that of another; nothing of this is to appear.
            Ok(()) => {
                assert!(!burned || session.execute("rollback").await.is_ok());
            }
        }
    }
}
