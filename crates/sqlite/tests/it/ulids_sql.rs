//! ULID transactions in plain SQL, by the stock shell and by Python, and transactions of several shards.

use std::path::Path;
use std::process::{Command, Stdio};

use changefeed_core::{Kind, SchemaStore, Ulid, UlidOptions, Uuid};
use changefeed_sqlite::begin_ulid;
use changefeed_sqlite::rusqlite::{Connection, params};

use crate::support::Lab;
use crate::ulid_feeds::EVENTS;

const OTHER: Uuid = Uuid::from_u128(7);
const TABLE: &str = "create table event (id integer primary key, shard integer, ulid blob check (length(ulid) = 16), note text)";

fn begin(shard: i32, hint: &str) -> String {
    format!(
        "insert into changefeed_ulid_transaction (feed_id, shard_id, time_hint) values ('{EVENTS}', {shard}, {hint});\n"
    )
}

const DRAW: &str = "insert into changefeed_new_ulid default values;\n";
const WRITE: &str = "insert into event (shard, ulid, note) select shard_id, ulid, 'sql' from changefeed_new_ulid order by n;\n";
const END: &str = "delete from changefeed_ulid_transaction;\ncommit;\n";

fn transaction(body: &str) -> String {
    format!("pragma foreign_keys = on;\nbegin immediate;\n{body}")
}

/// All ULIDs, in the order in which their rows were written.
fn ulids(app: &Connection) -> Vec<Ulid> {
    let mut all = app.prepare("select ulid from event order by id").unwrap();
    let rows = all.query_map([], |row| row.get(0)).unwrap();
    rows.map(|bytes| Ulid::from_bytes(bytes.unwrap())).collect()
}

#[tokio::test]
async fn sql_and_the_library_take_turns_and_ulids_increase() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    app.execute_batch(TABLE).unwrap();
    let now = "cast(strftime('%s') as integer) * 1000";
    // The clock, standing still, going back, far back and forth again: `UlidState::begin` says what comes of it.
    for hint in [
        "null",
        now,
        "5",
        &format!("{now} + 30000"),
        "null",
        "0",
        now,
    ] {
        let body = begin(0, hint) + DRAW + WRITE + DRAW + WRITE + END;
        lab.shell(&transaction(&body)).unwrap();
        let mut ours = begin_ulid(&mut app, &UlidOptions::new(EVENTS, 0)).unwrap();
        let ulid = ours.next_ulid().unwrap();
        let row = params![ulid.to_bytes()];
        ours.execute(
            "insert into event (shard, ulid, note) values (0, ?1, 'ours')",
            row,
        )
        .unwrap();
        ours.commit().unwrap();
    }
    let many = "insert into changefeed_new_ulid (count) values (1000);\n";
    lab.shell(&transaction(&(begin(0, "null") + many + WRITE + END)))
        .unwrap();
    let all = ulids(&app);
    assert_eq!(all.len(), 7 * 3 + 1000);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    assert_eq!(all[0].low() >> 62 & 1, 0, "room to count");
    assert_eq!(all[0].time(), all[1].time(), "one transaction, one time");
    assert_eq!(all[1020].low() - all[21].low(), 999);
    // What was rolled back is nowhere; what is left is where it began.
    lab.shell(&transaction(
        &(begin(0, "null") + DRAW + WRITE + "rollback;"),
    ))
    .unwrap();
    assert_eq!(ulids(&app), all);
}

#[tokio::test]
async fn a_shard_that_runs_short_moves_on_in_sql_too() {
    let lab = Lab::new().await;
    let app = lab.store.connection().unwrap();
    app.execute_batch(TABLE).unwrap();
    let body = begin(0, "null") + DRAW + WRITE + END;
    lab.shell(&transaction(&body)).unwrap();
    let mut before = ulids(&app)[0];
    for low in [
        -2i64,
        i64::MAX - 1,
        6_917_529_027_641_081_856,
        6_917_529_027_641_081_855,
    ] {
        app.execute(
            "update changefeed_shard_ulid set ulid_low = ?1, time = time + 100000, ulid_high = ?2",
            params![
                low,
                (((before.time() + 100_000) << 16) | 0xffff).to_be_bytes()
            ],
        )
        .unwrap();
        let parked = before.time() + 100_000;
        lab.shell(&transaction(&body)).unwrap();
        let next = *ulids(&app).last().unwrap();
        assert!(next > before);
        let moves = low != 6_917_529_027_641_081_855;
        assert_eq!(next.time(), parked + u64::from(moves), "{low}");
        before = next;
    }
    app.execute(
        "update changefeed_shard_ulid set ulid_low = -1, time = 281474976710655",
        [],
    )
    .unwrap();
    let refused = lab.shell(&transaction(&body)).unwrap_err();
    assert!(refused.contains("used up"), "{refused}");
}

/// Each with a sentence, and nothing is written.
#[tokio::test]
async fn misuse_in_sql_is_named() {
    let lab = Lab::new().await;
    let app = lab.store.connection().unwrap();
    app.execute_batch(TABLE).unwrap();
    let one = begin(0, "null");
    let feed = |feed: &str| {
        format!("insert into changefeed_ulid_transaction (feed_id, shard_id) values ({feed}, 0);\n")
    };
    let of = |shard: i32, count: &str| {
        format!(
            "insert into changefeed_new_ulid (feed_id, shard_id, count) values ('{EVENTS}', {shard}, {count});\n"
        )
    };
    for (sql, with) in [
        // Outside of a transaction, or without its end: a foreign key refuses it.
        (format!("pragma foreign_keys = on;\n{one}"), "FOREIGN KEY"),
        (
            transaction(&format!("{one}{DRAW}{WRITE}commit;\n")),
            "FOREIGN KEY",
        ),
        (
            format!("begin immediate;\n{one}"),
            "pragma foreign_keys = on",
        ),
        (transaction(DRAW), "there is no ULID transaction here"),
        (
            transaction(&format!("{one}{one}")),
            "in this ULID transaction already",
        ),
        (
            transaction(&format!("{one}{}{DRAW}", begin(1, "null"))),
            "name feed_id and shard_id",
        ),
        (
            transaction(&(one.clone() + &of(1, "1"))),
            "not in this ULID transaction",
        ),
        (
            transaction(&(one.clone() + &of(0, "0"))),
            "count is how many",
        ),
        (
            transaction(&(one.clone() + &of(0, "68719476737"))),
            "count is how many",
        ),
        (
            transaction(&(one.clone() + &of(0, "68719476736") + DRAW)),
            "count is how many",
        ),
        (
            transaction(&(one.clone() + &of(0, "'many'"))),
            "count is how many",
        ),
        (transaction(&feed("null")), "a UUID with hyphens"),
        (transaction(&feed("'orders'")), "a UUID with hyphens"),
        (
            transaction(&begin(0, "'yesterday'")),
            "milliseconds since 1970",
        ),
        (transaction(&begin(0, "-1")), "milliseconds since 1970"),
        (transaction(&begin(0, "200000000000000")), "too far ahead"),
    ] {
        let refused = lab.shell(&sql).unwrap_err();
        assert!(refused.contains(with), "{sql}: {refused}");
        assert_eq!(ulids(&app), []);
    }
    let open: i64 = app
        .query_row("select count(*) from changefeed_ulid_open", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(open, 0);
}

/// The example, by several processes at once, beside the library.
#[tokio::test]
async fn python_takes_part() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    app.execute_batch(
        "create table shoe_size_changed (id integer primary key, shard integer, ulid blob, customer_id integer, size integer)",
    )
    .unwrap();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ulid_writer_sqlite3.py");
    let writers: Vec<_> = (0..3)
        .map(|customer: i32| {
            let python = std::env::var_os("CHANGEFEED_TEST_PYTHON").unwrap_or("python3".into());
            Command::new(python)
                .arg(&example)
                .arg(lab.path())
                .args([&EVENTS.to_string(), "0", &customer.to_string(), "42", "20"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for _ in 0..20 {
        let mut ours = begin_ulid(&mut app, &UlidOptions::new(EVENTS, 0)).unwrap();
        let ulid = ours.next_ulid().unwrap();
        let row = params![ulid.to_bytes()];
        ours.execute(
            "insert into shoe_size_changed (shard, ulid) values (0, ?1)",
            row,
        )
        .unwrap();
        ours.commit().unwrap();
    }
    for writer in writers {
        let output = writer.wait_with_output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            said.lines()
                .filter(|l| l.starts_with("written as 01"))
                .count(),
            20
        );
    }
    let mut all = app
        .prepare("select ulid from shoe_size_changed order by id")
        .unwrap();
    let rows = all.query_map([], |row| row.get::<_, [u8; 16]>(0)).unwrap();
    let rows: Vec<[u8; 16]> = rows.map(Result::unwrap).collect();
    assert_eq!(rows.len(), 80);
    assert!(
        rows.windows(2).all(|pair| pair[0] < pair[1]),
        "ULIDs increase as rows are written"
    );
}

#[tokio::test]
async fn a_transaction_of_several_shards() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    let options = UlidOptions::new(EVENTS, 0).and(OTHER, 3);
    let mut newest = [Ulid::MIN; 3];
    for _ in 0..3 {
        let mut transaction = begin_ulid(&mut app, &options).unwrap();
        assert_eq!(transaction.next_ulid().unwrap_err().kind(), Kind::Invalid);
        assert!(transaction.next_ulid_of(EVENTS, 1).is_err());
        let error = transaction.add(OTHER, 4).unwrap_err();
        assert!(error.to_string().contains("ascending order"), "{error}");
        transaction.add(EVENTS, 1).unwrap();
        let pairs = [(OTHER, 3), (EVENTS, 0), (EVENTS, 1)];
        let given = pairs.map(|(feed, shard)| {
            let mut two = transaction.ulids_of(feed, shard, 2).unwrap();
            (two.next().unwrap(), two.next().unwrap())
        });
        transaction.commit().unwrap();
        for (before, (first, last)) in newest.iter_mut().zip(given) {
            assert!(*before < first && first < last);
            *before = last;
        }
    }
    lab.store.migrate().await.unwrap();
}
