//! Objects in directories and in a real store of S3's protocol.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use changefeed_engine::sinks::destination::{Appended, Held};

use super::chaos::{Chaos, judge, rounds};
use super::{lane, messages, numbers, open, put, stands_at};

/// The messages in the lines of an object.
fn of_lines(content: &[u8]) -> Vec<(i64, Bytes)> {
    let lines = content.strip_suffix(b"\n").expect("whole lines");
    let message = |line: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(line).expect("JSON");
        (
            value["row"]["number"].as_i64().expect("a number"),
            Bytes::copy_from_slice(line),
        )
    };
    lines.split(|byte| *byte == b'\n').map(message).collect()
}

/// Reads a folder of objects in the order of their names. Nothing else may be there.
fn read(folder: &Path) -> Vec<(i64, Bytes)> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
    paths.sort();
    let content = |path: &std::path::PathBuf| of_lines(&fs::read(path).unwrap());
    paths.iter().flat_map(content).collect()
}

fn address(directory: &tempfile::TempDir) -> String {
    format!("dir:{}/lake", directory.path().display())
}

#[tokio::test]
async fn a_directory_appends_and_resumes() {
    let directory = tempfile::tempdir().unwrap();
    let address = address(&directory);
    super::appends_and_resumes(&*open(&address).await, &*open(&address).await).await;
    let expected: Vec<i64> = (1..=1006).chain([2000, 3000, 3001]).collect();
    let root = directory.path().join("lake");
    assert_eq!(numbers(&read(&root.join("shard=0/epoch=0"))), expected);
    assert_eq!(numbers(&read(&root.join("shard=1/epoch=0"))), [1, 2, 3]);
    let first = root.join("shard=0/epoch=0/00000000000000000000.ndjson");
    assert_eq!(
        numbers(&of_lines(&fs::read(first).unwrap())),
        [1, 2, 3, 4, 5]
    );
}

#[tokio::test]
async fn a_zombie_creates_nothing_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let address = address(&directory);
    super::a_zombie_writes_nothing(&*open(&address).await, &*open(&address).await).await;
    let folder = directory.path().join("lake/shard=0/epoch=0");
    assert_eq!(numbers(&read(&folder)), (1..=10).collect::<Vec<_>>());
    assert_eq!(
        fs::read_dir(folder).unwrap().count(),
        2,
        "nothing is left over"
    );
}

#[tokio::test]
async fn what_is_not_ours_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let address = address(&directory);
    let (sink, lane) = (open(&address).await, lane(0, 0));
    let held = put(&*sink, &lane, Held::Nothing, &messages(&lane, 1..=5)).await;
    let folder = directory.path().join("lake/shard=0/epoch=0");
    fs::write(folder.join("_SUCCESS"), "").unwrap();
    assert_eq!(sink.resume(&lane).await, Ok(held));
    let other = open(&format!("{address}?as=ndjson.gz")).await;
    #[cfg(feature = "s3")]
    {
        let said = other.resume(&lane).await.unwrap_err();
        assert!(said.contains("of the form ndjson, not ndjson.gz"), "{said}");
    }
    drop(other);
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let said = sink.resume(&lane).await.unwrap_err();
    assert!(said.contains("'notes.txt'"), "{said}");
    fs::remove_file(folder.join("notes.txt")).unwrap();
    // Emptied by somebody: not taken for the beginning.
    fs::write(folder.join("00000000000000000005.ndjson"), "").unwrap();
    let said = sink.resume(&lane).await.unwrap_err();
    assert!(said.contains("not written by changefeed"), "{said}");
    // A replay begins in a folder of its own.
    assert_eq!(sink.resume(&super::lane(0, 1)).await, Ok(Held::Nothing));
}

/// What a dead process has left is neither read nor in the way.
#[tokio::test]
async fn half_an_object_is_no_object() {
    let directory = tempfile::tempdir().unwrap();
    let address = address(&directory);
    let (sink, lane) = (open(&address).await, lane(0, 0));
    let held = put(&*sink, &lane, Held::Nothing, &messages(&lane, 1..=5)).await;
    let folder = directory.path().join("lake/shard=0/epoch=0");
    let left = folder.join(".new-1-0");
    fs::write(&left, "{\"cursor\":\"6").unwrap();
    assert_eq!(sink.resume(&lane).await, Ok(held));
    let hours_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7300);
    let file = fs::File::options().write(true).open(&left).unwrap();
    file.set_modified(hours_ago).unwrap();
    assert_eq!(sink.resume(&lane).await, Ok(held));
    assert!(!left.exists());
    put(&*sink, &lane, held, &messages(&lane, 6..=9)).await;
    assert_eq!(numbers(&read(&folder)), (1..=9).collect::<Vec<_>>());
}

#[tokio::test]
async fn nothing_is_lost_or_repeated_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let goal = Chaos::new(address(&directory), &mut [])
        .await
        .run(rounds(6))
        .await;
    judge(&read(&directory.path().join("lake/shard=0/epoch=0")), goal);
}

#[cfg(feature = "parquet")]
mod parquet {
    use std::process::Command;

    use super::*;

    /// Reads a folder with a program that is not ours, and tells the types of its columns.
    fn read(folder: &Path) -> (String, Vec<(i64, Bytes)>) {
        let python = std::env::var_os("CHANGEFEED_TEST_PYTHON");
        let script = r#"
import duckdb, json, sys
files = f"read_parquet('{sys.argv[1]}/*.parquet', hive_partitioning = false, filename = true, file_row_number = true)"
described = duckdb.sql(f"describe select * exclude (filename, file_row_number) from {files}").fetchall()
print(", ".join(f"{column[0]} {column[1]}" for column in described))
columns = "number, cursor, shard, epoch, feed, op, row, key, time"
for row in duckdb.sql(f"select {columns} from {files} order by filename, file_row_number").fetchall():
    print(json.dumps(row))
"#;
        let output =
            Command::new(python.expect("CHANGEFEED_TEST_PYTHON, with duckdb; ./test sets it"))
                .args(["-c", script])
                .arg(folder)
                .output()
                .expect("Python");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let text = String::from_utf8(output.stdout).expect("text");
        let mut lines = text.lines();
        let types = lines.next().expect("types").to_owned();
        let message = |line: &str| {
            let values: Vec<serde_json::Value> = serde_json::from_str(line).expect("JSON");
            let number = values[0].as_i64().expect("a number");
            assert_eq!(values[1], number.to_string());
            let (zero, none) = (serde_json::Value::from(0), serde_json::Value::Null);
            assert_eq!(
                values[2..6],
                [zero.clone(), zero, "orders".into(), "insert".into()]
            );
            assert_eq!(values[7..], [none.clone(), none]);
            let row = values[6].as_str().expect("a row");
            let body = format!(r#"{{"cursor":"{number}","op":"insert","row":{row}}}"#);
            (number, Bytes::from(body))
        };
        (types, lines.map(message).collect())
    }

    #[tokio::test]
    async fn nothing_is_lost_or_repeated_in_parquet() {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("{}?as=parquet", address(&directory));
        let chaos = Chaos::new(address, &mut []).await;
        let goal = chaos.run(rounds(2)).await;
        let (types, rows) = read(&directory.path().join("lake/shard=0/epoch=0"));
        judge(&rows, goal);
        assert_eq!(
            types,
            "feed VARCHAR, shard INTEGER, epoch INTEGER, cursor VARCHAR, number BIGINT, \
             time TIMESTAMP WITH TIME ZONE, change_id BIGINT, op VARCHAR, key VARCHAR, \
             old VARCHAR, new VARCHAR, row VARCHAR"
        );
    }
}

#[cfg(feature = "s3")]
mod s3 {
    use std::io::Read;

    use super::super::servers::{self, Server};
    use super::*;

    fn url(server: &Server) -> String {
        let port = server.port;
        format!(
            "s3://tester:hu%2Fsh%2B@lake/deep/orders?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        )
    }

    /// Reads objects past the protocol of S3.
    fn read(files: u16) -> Vec<(i64, Bytes)> {
        let folder = "/buckets/lake/deep/orders/shard%3D0/epoch%3D0/";
        let listed =
            servers::http(files, "GET", &format!("{folder}?limit=1000000")).expect("a list");
        let listed: serde_json::Value = serde_json::from_slice(&listed).expect("JSON");
        let mut names: Vec<&str> = listed["Entries"]
            .as_array()
            .expect("entries")
            .iter()
            .filter_map(|entry| entry["FullPath"].as_str()?.rsplit('/').next())
            .collect();
        names.sort_unstable();
        let content = |name: &&str| {
            let mut content =
                servers::http(files, "GET", &format!("{folder}{name}")).expect("an object");
            if name.ends_with(".gz") {
                let mut lines = Vec::new();
                flate2::read::MultiGzDecoder::new(&content[..])
                    .read_to_end(&mut lines)
                    .unwrap();
                content = lines;
            }
            of_lines(&content)
        };
        names.iter().flat_map(content).collect()
    }

    /// All in one test: the server needs seconds to start.
    #[tokio::test]
    async fn s3_appends_resumes_and_survives_a_crash() {
        let (mut server, files) = servers::seaweed();
        let url = format!("{}&as=ndjson.gz", url(&server));
        let wrong = open(&url.replace("hu%2Fsh", "wrong")).await;
        let said = wrong.resume(&lane(0, 0)).await.unwrap_err();
        assert!(
            said.contains("SignatureDoesNotMatch") && !said.contains("wrong"),
            "{said}"
        );
        let missing = open(&url.replace("@lake", "@nowhere")).await;
        let said = missing.resume(&lane(0, 0)).await.unwrap_err();
        assert!(said.contains("NoSuchBucket"), "{said}");
        let sink = open(&url).await;
        super::super::appends_and_resumes(&*sink, &*open(&url).await).await;
        let expected: Vec<i64> = (1..=1006).chain([2000, 3000, 3001]).collect();
        assert_eq!(numbers(&read(files)), expected);
        let lane = lane(0, 0);
        let held = sink.resume(&lane).await.unwrap();
        server.kill();
        let batch = messages(&lane, 3002..=3500);
        let away = sink.append(&lane, held, &batch).await;
        assert!(matches!(away, Appended::Unavailable(_)), "{away:?}");
        server.restart();
        assert_eq!(stands_at(&*sink, &lane).await, 3001);
        super::super::until("the store to write again", || async {
            matches!(sink.append(&lane, held, &batch).await, Appended::All(_)).then_some(())
        })
        .await;
        assert_eq!(numbers(&read(files)).len(), expected.len() + 499);
    }

    /// The newest object is found without listing all of them.
    #[tokio::test]
    async fn a_zombie_creates_nothing_in_s3() {
        let (server, files) = servers::seaweed();
        let (owner, zombie) = (open(&url(&server)).await, open(&url(&server)).await);
        super::super::a_zombie_writes_nothing(&*owner, &*zombie).await;
        assert_eq!(numbers(&read(files)), (1..=10).collect::<Vec<_>>());
        let lane = lane(0, 0);
        let mut held = owner.resume(&lane).await.unwrap();
        for number in 11..=1300 {
            held = put(&*owner, &lane, held, &messages(&lane, [number])).await;
        }
        assert_eq!(stands_at(&*zombie, &lane).await, 1300);
    }

    #[tokio::test]
    async fn nothing_is_lost_or_repeated_in_s3() {
        let (server, files) = servers::seaweed();
        let url = url(&server);
        let mut servers = [server];
        let goal = Chaos::new(url, &mut servers).await.run(rounds(3)).await;
        judge(&read(files), goal);
    }
}
