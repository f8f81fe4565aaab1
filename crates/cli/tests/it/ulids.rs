//! Feeds that are ordered by ULIDs, on the command line.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use changefeed::{Ulid, UlidOptions};
use changefeed_testkit::backend::{Backend, PostgresBackend, on_every_backend};
use changefeed_testkit::process::Running;
use changefeed_testkit::run;
use changefeed_testkit::ulids::{FEED, UlidWrite};
use serde_json::Value;

fn command(url: &str, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .args(["--db", url])
        .args(args.split(' '))
        .env_remove("CHANGEFEED_DB")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

fn changefeed(url: &str, args: &str) -> Output {
    tokio::task::block_in_place(|| command(url, args).output().unwrap())
}

fn works(url: &str, args: &str) -> String {
    let output = changefeed(url, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(url: &str, args: &str, code: i32) -> String {
    let output = changefeed(url, args);
    assert_eq!(output.status.code(), Some(code), "{args}");
    String::from_utf8(output.stderr).unwrap()
}

fn objects(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn create(rest: &str) -> String {
    format!(
        "feed create shoe-sizes --id 38 --shards 2 --ulid-feed {FEED} --ulid-table event \
         --shard-column shard --ulid-column ulid{rest}"
    )
}

/// Every database, with the table and the schema.
async fn everywhere(case: impl AsyncFn(Arc<dyn Backend>)) {
    on_every_backend(async |backend| {
        works(&backend.url(), "migrate");
        backend
            .session()
            .await
            .run(&format!(
                "create table event (shard int not null, ulid {} not null, note text not null, \
                 primary key (shard, ulid))",
                backend.words().ulid_type
            ))
            .await;
        case(backend).await;
    })
    .await;
}

/// Writes a row that happens at a time.
async fn write(backend: &dyn Backend, shard: i32, time: Option<u64>, note: &str) -> Ulid {
    let options = UlidOptions {
        time_hint: time,
        ..UlidOptions::new(FEED, shard)
    };
    let write = UlidWrite::committed([note]);
    backend.write_ulids(options, write).await.unwrap()[0]
}

/// 2026-01-31T12:00:00Z
const NOON: u64 = 1_769_860_800_000;

#[test]
fn a_ulid_feed_is_made_read_and_shown() {
    run(everywhere(async |backend| {
        let url = backend.url();
        let made = works(&url, &create(""));
        assert_eq!(made, "feed shoe-sizes created with id 38 and 2 shards\n");
        let mut ulids = Vec::new();
        for (n, note) in ["a", "b", "c"].into_iter().enumerate() {
            let time = NOON + 1000 * n as u64;
            ulids.push(write(&*backend, 1, Some(time), note).await);
        }
        let read = |after: &str| {
            let args = format!("feed read shoe-sizes --shard 1 --after {after} --json");
            let lines = objects(&works(&url, &args));
            for line in &lines {
                assert_eq!(line["feed"], "shoe-sizes");
                assert_eq!(line["shard"], 1);
                assert_eq!(line["change_id"], Value::Null);
                assert!(line.as_object().unwrap().contains_key("change_id"));
                let ulid: Ulid = line["cursor"].as_str().unwrap().parse().unwrap();
                assert!(ulids.contains(&ulid));
            }
            let notes: Vec<String> = lines
                .iter()
                .map(|line| line["row"]["note"].as_str().unwrap().to_owned())
                .collect();
            notes.concat()
        };
        assert_eq!(read("first"), "abc");
        assert_eq!(read("last"), "");
        assert_eq!(read(&ulids[0].to_string()), "bc");
        assert_eq!(read(&ulids[0].to_string().to_lowercase()), "bc");
        assert_eq!(read("2026-01-31T12:00:00Z"), "abc");
        assert_eq!(read("2026-01-31T12:00:00.001Z"), "bc");
        assert_eq!(read("2026-01-31T12:00:02Z"), "c");
        assert_eq!(read("2027-01-01T00:00:00Z"), "");
        let text = works(
            &url,
            "feed read shoe-sizes --shard 1 --after first --limit 1",
        );
        assert!(
            text.starts_with(&format!("shoe-sizes/1  {}  {{", ulids[0])),
            "{text}"
        );

        let listed = works(&url, "feed list");
        assert!(
            listed.contains("shoe-sizes") && listed.contains("event"),
            "{listed}"
        );
        let status = objects(&works(&url, "status --json"));
        let shard = |n: usize| status[0]["feeds"][0]["shards"][n]["last"].clone();
        assert_eq!(shard(0), Ulid::MIN.to_string());
        assert_eq!(shard(1), ulids[2].to_string());

        // A cursor that a consumer keeps.
        let set = format!(
            "consumer set indexer --feed shoe-sizes --shard 1 --cursor {}",
            ulids[1]
        );
        works(&url, &set);
        let kept = objects(&works(&url, "consumer list --json"));
        assert_eq!(kept[0]["cursor"], ulids[1].to_string());
        works(&url, "status");
    }));
}

#[test]
fn tail_follows_ulids() {
    run(everywhere(async |backend| {
        let url = backend.url();
        works(&url, &create(""));
        write(&*backend, 0, None, "before").await;
        let mut tail = Running::start(
            command(&url, "feed tail shoe-sizes --after first --json").stdout(Stdio::piped()),
        );
        let mut lines = BufReader::new(tail.child().stdout.take().unwrap()).lines();
        let mut next = || {
            let line = tokio::task::block_in_place(|| lines.next().unwrap().unwrap());
            let line: Value = serde_json::from_str(&line).unwrap();
            let note = line["row"]["note"].as_str().unwrap().to_owned();
            (note, line["cursor"].as_str().unwrap().to_owned())
        };
        assert_eq!(next().0, "before");
        for (shard, note) in [(1, "one"), (0, "two"), (1, "three")] {
            let ulid = write(&*backend, shard, None, note).await;
            assert_eq!(next(), (note.to_owned(), ulid.to_string()));
        }
    }));
}

#[test]
fn what_makes_no_sense_for_ulids_is_refused() {
    run(everywhere(async |backend| {
        let url = backend.url();
        works(&url, &create(""));
        write(&*backend, 0, None, "a").await;
        for (args, done) in [
            ("feed backfill shoe-sizes", "backfilled"),
            ("feed trim shoe-sizes --older-than 1s", "trimmed"),
        ] {
            let said = fails(&url, args, 2);
            assert!(
                said.starts_with("error: feed 'shoe-sizes' is ordered by ULIDs")
                    && said.contains(&format!("so it cannot be {done}")),
                "{said}"
            );
        }
        let said = fails(&url, "feed read shoe-sizes --after 2000000000000001", 2);
        assert!(
            said.starts_with(
                "error: cursor 2000000000000001 does not belong to feed 'shoe-sizes'\n  \
                 hint: this feed is ordered by ULIDs"
            ),
            "{said}"
        );
        works(&url, "feed create plain --id 5");
        let ulid = "feed read plain --after 01ARZ3NDEKTSV4RRFFQ69G5FAV";
        let said = fails(&url, ulid, 2);
        assert!(
            said.contains("does not belong to feed 'plain'") && said.contains("ordered by numbers"),
            "{said}"
        );
        // A time is a place to begin in feeds of numbers, too.
        let read = works(&url, "feed read plain --after 2026-01-31T12:00:00Z");
        assert!(read.starts_with("nothing to read"), "{read}");
        // A consumer of numbers does not take a ULID, nor the other way round.
        for set in [
            "consumer set c --feed plain --cursor 01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "consumer set c --feed shoe-sizes --cursor 5",
        ] {
            let said = fails(&url, set, 2);
            assert!(said.contains("does not belong to feed"), "{set}: {said}");
        }
        assert_eq!(works(&url, "consumer list --json"), "");
        // All four, or none; and none of the others.
        for args in [
            format!("feed create x --ulid-feed {FEED}"),
            "feed create x --ulid-table event".to_owned(),
            format!("feed create x --ulid-feed {FEED} --ulid-table event --ulid-column ulid"),
            create(" --from event").replace("shoe-sizes --id 38", "x"),
            create(" --rows event").replace("shoe-sizes --id 38", "x"),
            create(" --shard-by note").replace("shoe-sizes --id 38", "x"),
            create("").replace(&FEED.to_string(), "not-a-uuid"),
        ] {
            let said = fails(&url, &args, 2);
            assert!(said.starts_with("error: "), "{args}: {said}");
        }
        for (args, words) in [
            (create("").replace("column ulid", "column note"), "'note'"),
            (create("").replace("column shard", "column note"), "'note'"),
        ] {
            let args = args.replace("shoe-sizes --id 38", "x");
            let said = fails(&url, &args, 2);
            assert!(said.contains(words), "{args}: {said}");
        }
        assert_eq!(objects(&works(&url, "feed list --json")).len(), 2);
    }));
}

/// A lost writer is seen in `status`.
#[test]
fn status_shows_incidents() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let url = backend.url();
        works(&url, "migrate");
        let admin = (&backend as &dyn Backend).session().await;
        admin.run(changefeed_testkit::ulids::POSTGRES_TABLE).await;
        works(&url, &create(""));
        assert!(!works(&url, "status").contains("LOST WRITERS"));
        let silent = (&backend as &dyn Backend).session().await;
        silent
            .run(&format!(
                "begin; select changefeed.begin_ulid_transaction('{FEED}', 0, 60000)"
            ))
            .await;
        let options = UlidOptions {
            timeout: Duration::from_millis(100),
            ..UlidOptions::new(FEED, 0)
        };
        backend
            .write_ulids(options, UlidWrite::committed(["a"]))
            .await
            .unwrap();
        let status = works(&url, "status");
        assert!(
            status.contains("LOST WRITERS") && status.contains(&format!("{FEED}/0")),
            "{status}"
        );
        let status = objects(&works(&url, "status --json"));
        let incident = &status[0]["incidents"][0];
        assert_eq!(incident["feed"], FEED.to_string());
        assert_eq!(incident["shard"], 0);
        assert_eq!(incident["count"], 1);
        assert!(incident["since_ms"].as_i64().unwrap() < 60_000);
    });
}
