//! ULID transactions.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use changefeed_core::{After, Cursor, Kind, SchemaStore, Ulid, UlidOptions, UlidStore, Uuid};
use changefeed_sqlite::rusqlite::{Connection, params};
use changefeed_sqlite::{UlidTransaction, begin_ulid};

use crate::support::Lab;
use crate::ulid_feeds::{EVENTS, event_feed};

const ROLE: &str = "CHANGEFEED_ULID_CHILD";
const FILE: &str = "CHANGEFEED_ULID_FILE";

fn options() -> UlidOptions {
    UlidOptions::new(EVENTS, 0)
}

fn at(time: u64) -> UlidOptions {
    UlidOptions {
        time_hint: Some(time),
        ..options()
    }
}

fn impatient() -> UlidOptions {
    UlidOptions {
        wait: Duration::from_millis(30),
        ..options()
    }
}

fn insert(transaction: &UlidTransaction<'_>, ulid: Ulid, note: &str) {
    transaction
        .prepare_cached("insert into event values (0, ?1, ?2)")
        .unwrap()
        .execute(params![ulid.to_bytes(), note])
        .unwrap();
}

fn with_events(connection: &Connection) {
    connection
        .execute_batch(
            "create table event (shard integer, ulid blob, note text, primary key (shard, ulid)) \
             without rowid",
        )
        .unwrap();
}

#[tokio::test]
async fn ulids_increase_whatever_the_clock_does() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    let mut newest = Ulid::MIN;
    let mut times = Vec::new();
    // Standing still, going back, going forth, standing still again; then the real clock, which
    // shows a time far behind the last hint but one.
    let year_2500 = 16_725_225_600_000;
    app.execute_batch("update changefeed_ulid_limit set ahead_milliseconds = 1000000000000000")
        .unwrap();
    let hints = [5000, 5000, 4000, 0, 5001, 5001, 3];
    let hints = hints.into_iter().map(Some).chain([None, None]);
    for hint in hints.chain([Some(year_2500), None, Some(year_2500 + 1)]) {
        let options = UlidOptions {
            time_hint: hint,
            ..options()
        };
        let mut transaction = begin_ulid(&mut app, &options).unwrap();
        let first = transaction.next_ulid().unwrap();
        assert!(first > newest);
        newest = first;
        for ulid in transaction.ulids(3).unwrap() {
            assert!(ulid > newest);
            newest = ulid;
        }
        assert_eq!(newest.time(), transaction.time());
        times.push(transaction.time());
        transaction.commit().unwrap();
    }
    assert_eq!(times[..7], [5000, 5000, 5000, 5000, 5001, 5001, 5001]);
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_millis();
    assert!((times[7] as u128).abs_diff(now) < 60_000);
    assert!(times[8] >= times[7]);
    assert_eq!(times[9..], [year_2500, year_2500, year_2500 + 1]);
}

#[tokio::test]
async fn only_the_pair_of_feed_and_shard_matters() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    let mut take = |feed, shard, time| {
        let options = UlidOptions {
            time_hint: Some(time),
            ..UlidOptions::new(feed, shard)
        };
        let mut transaction = begin_ulid(&mut app, &options).unwrap();
        let ulid = transaction.next_ulid().unwrap();
        transaction.commit().unwrap();
        ulid
    };
    let other = Uuid::from_u128(1);
    let first = take(EVENTS, 0, 1000);
    assert_eq!(take(EVENTS, i32::MIN, 7).time(), 7);
    assert_eq!(take(other, 0, 8).time(), 8);
    let second = take(EVENTS, 0, 1000);
    assert_eq!(
        (first.high(), first.low() + 1),
        (second.high(), second.low())
    );
}

#[tokio::test]
async fn rolling_back_and_dropping_free_the_file_and_give_nothing() {
    let lab = Lab::new().await;
    let (mut app, mut other) = (
        lab.store.connection().unwrap(),
        lab.store.connection().unwrap(),
    );
    with_events(&app);
    for by_drop in [false, true] {
        let mut transaction = begin_ulid(&mut app, &options()).unwrap();
        let ulid = transaction.next_ulid().unwrap();
        insert(&transaction, ulid, "never");
        if by_drop {
            drop(transaction);
        } else {
            transaction.rollback().unwrap();
        }
        let next = begin_ulid(&mut other, &impatient()).unwrap();
        next.rollback().unwrap();
    }
    for table in ["event", "changefeed_shard_ulid"] {
        let rows: i64 = app
            .query_row(&format!("select count(*) from {table}"), [], |row| {
                row.get(0)
            })
            .unwrap();
        assert_eq!(rows, 0, "{table}");
    }
}

#[tokio::test]
async fn who_waits_too_long_is_told_and_keeps_its_busy_timeout() {
    let lab = Lab::new().await;
    let (mut app, mut other) = (
        lab.store.connection().unwrap(),
        lab.store.connection().unwrap(),
    );
    other.busy_timeout(Duration::from_millis(1234)).unwrap();
    let timeout = |connection: &Connection| -> i64 {
        connection
            .query_row("pragma busy_timeout", [], |row| row.get(0))
            .unwrap()
    };
    let holder = begin_ulid(&mut app, &options()).unwrap();
    let began = Instant::now();
    let error = begin_ulid(&mut other, &impatient()).unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(30));
    assert_eq!(error.kind(), Kind::Busy);
    assert_eq!(
        error.message(),
        "feed 80270756-deeb-11ed-91f2-4f03a365d3f8 shard 0 is busy: others have held the \
         database's write lock for 30 ms"
    );
    assert_eq!(timeout(&other), 1234);
    holder.commit().unwrap();
    let long = UlidOptions {
        wait: Duration::MAX,
        ..options()
    };
    let transaction = begin_ulid(&mut other, &long).unwrap();
    assert_eq!(timeout(&transaction), 1234);
}

#[tokio::test]
async fn misuse_gets_an_error_that_says_so() {
    let lab = Lab::bare().await;
    let mut app = lab.store.connection().unwrap();
    let missing = begin_ulid(&mut app, &options()).unwrap_err();
    assert_eq!(missing.kind(), Kind::SchemaMissing);
    assert!(app.is_autocommit(), "nothing is left open");
    lab.store.migrate().await.unwrap();

    app.execute_batch("begin").unwrap();
    let nested = begin_ulid(&mut app, &options()).unwrap_err();
    assert_eq!(nested.kind(), Kind::Invalid);
    assert!(nested.message().contains("in a transaction already"));
    app.execute_batch("rollback").unwrap();

    let hasty = UlidOptions {
        timeout: Duration::ZERO,
        ..options()
    };
    assert_eq!(
        begin_ulid(&mut app, &hasty).unwrap_err().kind(),
        Kind::Invalid
    );

    let mut greedy = begin_ulid(&mut app, &options()).unwrap();
    let refused = greedy.ulids(u64::MAX).map(drop).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    drop(greedy);

    // Ended by SQL: no ULID and no commit any more.
    for end in ["rollback", "commit"] {
        let mut ended = begin_ulid(&mut app, &options()).unwrap();
        ended.execute_batch(end).unwrap();
        for error in [
            ended.next_ulid().map(drop).unwrap_err(),
            ended.commit().unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.message().contains("ended by SQL"));
        }
        let ended = begin_ulid(&mut app, &options()).unwrap();
        ended.execute_batch(end).unwrap();
        ended.rollback().unwrap();
    }
}

#[tokio::test]
async fn a_raw_commit_leaves_nothing_that_a_later_transaction_could_fall_behind() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    with_events(&app);
    let mut raw = begin_ulid(&mut app, &at(1000)).unwrap();
    let mut newest = Ulid::MIN;
    for ulid in raw.ulids(100).unwrap() {
        insert(&raw, ulid, "raw");
        newest = ulid;
    }
    raw.execute_batch("commit").unwrap();
    drop(raw);
    let mut next = begin_ulid(&mut app, &at(1000)).unwrap();
    assert_eq!(next.time(), 1000);
    assert!(next.next_ulid().unwrap() > newest);
}

#[tokio::test]
async fn a_transaction_whose_shard_has_moved_cannot_commit() {
    let lab = Lab::new().await;
    let (mut app, mut other) = (
        lab.store.connection().unwrap(),
        lab.store.connection().unwrap(),
    );
    with_events(&app);
    let mut torn = begin_ulid(&mut app, &options()).unwrap();
    torn.execute_batch("commit").unwrap();
    let mut quick = begin_ulid(&mut other, &options()).unwrap();
    quick.next_ulid().unwrap();
    quick.commit().unwrap();
    torn.execute_batch("begin immediate").unwrap();
    let ulid = torn.next_ulid().unwrap();
    insert(&torn, ulid, "too late");
    let error = torn.commit().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.message().contains("cannot commit"), "{error}");
    let rows: i64 = app
        .query_row("select count(*) from event", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn a_savepoint_works_as_in_any_transaction() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    with_events(&app);
    let mut transaction = begin_ulid(&mut app, &options()).unwrap();
    let ulids: Vec<Ulid> = transaction.ulids(2).unwrap().collect();
    let savepoint = transaction.savepoint().unwrap();
    savepoint
        .execute(
            "insert into event values (0, ?1, 'undone')",
            [ulids[0].to_bytes()],
        )
        .unwrap();
    drop(savepoint);
    insert(&transaction, ulids[1], "done");
    transaction.commit().unwrap();
    let notes: String = app
        .query_row("select group_concat(note) from event", [], |row| row.get(0))
        .unwrap();
    assert_eq!(notes, "done");
}

#[tokio::test]
async fn a_million_ulids_in_one_transaction() {
    const MILLION: u64 = 1_000_000;
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    with_events(&app);
    let mut transaction = begin_ulid(&mut app, &options()).unwrap();
    let time = transaction.time();
    let mut newest = Ulid::MIN;
    let mut count = 0;
    for ulid in transaction.ulids(MILLION).unwrap() {
        assert!(ulid > newest && ulid.time() == time);
        insert(&transaction, ulid, "");
        newest = ulid;
        count += 1;
    }
    assert_eq!(count, MILLION);
    transaction.commit().unwrap();
    let (rows, largest): (u64, [u8; 16]) = app
        .query_row("select count(*), max(ulid) from event", [], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
        })
        .unwrap();
    assert_eq!(
        (rows, largest),
        (MILLION, newest.to_bytes()),
        "the primary key keeps them apart"
    );
    let mut next = begin_ulid(&mut app, &at(0)).unwrap();
    assert!(next.next_ulid().unwrap() > newest);
}

/// Not a test of its own: what the processes do that other tests start.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut app = Connection::open(PathBuf::from(std::env::var_os(FILE).unwrap())).unwrap();
    let say = |text: &str| {
        let mut out = std::io::stdout();
        writeln!(out, "\n{text}").unwrap();
        out.flush().unwrap();
    };
    if role == "hold" {
        let mut transaction = begin_ulid(&mut app, &options()).unwrap();
        let ulid = transaction.next_ulid().unwrap();
        insert(&transaction, ulid, "held");
        say("ready");
        // Until it is killed, or whoever started it is gone.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    // Writes until its input ends, and fifty transactions at least.
    let (stop, stopped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = stop.send(());
    });
    say("ready");
    for n in 0u64.. {
        // One of the two has a clock that stands still.
        let options = if role == "late" { at(0) } else { options() };
        let mut transaction = begin_ulid(&mut app, &options).unwrap();
        for ulid in transaction.ulids(1 + n % 4).unwrap() {
            insert(&transaction, ulid, &role);
        }
        match n % 7 {
            3 => transaction.rollback().unwrap(),
            5 => drop(transaction),
            _ => transaction.commit().unwrap(),
        }
        if n >= 50 && stopped.try_recv().is_ok() {
            return;
        }
    }
}

/// A process, which dies with its test.
struct Process(Child);

impl Process {
    /// Starts one and waits until it says that it is ready.
    fn start(lab: &Lab, role: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ulids::child", "--nocapture"])
            .env(ROLE, role)
            .env(FILE, lab.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let process = Process(child);
        let mut lines = BufReader::new(output).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "{role}");
        // Whatever else it says shall not block it.
        std::thread::spawn(move || lines.for_each(drop));
        process
    }

    fn finish(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_killed_process_frees_the_file_at_once() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    with_events(&app);
    let mut holder = Process::start(&lab, "hold");
    let busy = begin_ulid(&mut app, &impatient()).unwrap_err();
    assert_eq!(
        busy.kind(),
        Kind::Busy,
        "it is silent, and nothing can be burned"
    );
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    let no_wait = UlidOptions {
        wait: Duration::ZERO,
        ..options()
    };
    let mut transaction = begin_ulid(&mut app, &no_wait).unwrap();
    let ulid = transaction.next_ulid().unwrap();
    insert(&transaction, ulid, "next");
    transaction.commit().unwrap();
    let notes: String = app
        .query_row("select group_concat(note) from event", [], |row| row.get(0))
        .unwrap();
    assert_eq!(notes, "next");
    assert!(lab.store.incidents().await.unwrap().is_empty());
}

#[tokio::test]
async fn no_ulid_appears_behind_the_cursor_of_a_reader() {
    let lab = Lab::new().await;
    with_events(&lab.app());
    let feed = event_feed(&lab, 1).await;
    let writers = [
        Process::start(&lab, "punctual"),
        Process::start(&lab, "late"),
    ];
    let mut cursor = After::First;
    let mut read: Vec<Cursor> = Vec::new();
    let reading = async {
        let mut pages = 0;
        // Odd page sizes, so that pages end in the middle of transactions.
        while pages < 200 || read.len() < 1000 {
            let page = lab.page(&feed, 0, cursor, 1 + pages % 13).await;
            pages += 1;
            cursor = page.next.into();
            read.extend(page.changes.iter().map(|change| change.cursor));
        }
    };
    tokio::time::timeout(Duration::from_secs(120), reading)
        .await
        .unwrap();
    writers.into_iter().for_each(Process::finish);
    let mut all = Vec::new();
    let mut from = After::First;
    loop {
        let page = lab.page(&feed, 0, from, 10_000).await;
        if page.changes.is_empty() {
            break;
        }
        from = page.next.into();
        all.extend(page.changes.into_iter().map(|change| change.cursor));
    }
    let writers: i64 = lab
        .app()
        .query_row("select count(distinct note) from event", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(writers, 2);
    assert!(all.len() >= read.len());
    assert_eq!(
        all[..read.len()],
        read,
        "what was read is what is there up to the reader's cursor"
    );
}
