//! A client that is not ours: Python with pymssql, by the documented T-SQL alone.

use std::process::Command;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

use crate::ulids::support::{scene, write};

/// Two of them, and a Rust writer in between.
#[test]
fn pymssql_writes_by_the_documented_sql_alone() {
    run(async {
        let scene = scene().await;
        let python =
            std::env::var("CHANGEFEED_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let client = |name: &'static str| {
            let mut command = Command::new(&python);
            command
                .arg(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../testkit/python/sqlserver_ulids.py"
                ))
                .args([&scene.backend.url(), &FEED.to_string(), "4", name]);
            tokio::task::spawn_blocking(move || command.output().unwrap())
        };
        let clients = [client("anna"), client("bert")];
        for n in 0..3 {
            write(&scene.store, &format!("rust {n}")).await;
        }
        for client in clients {
            let output = client.await.unwrap();
            let told = String::from_utf8_lossy(&output.stdout);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{error}");
            let ulids: Vec<&str> = told.lines().collect();
            assert_eq!(ulids.len(), 12, "{told}");
            assert!(ulids.windows(2).all(|pair| pair[0] < pair[1]), "{told}");
        }
        // Every transaction is one piece.
        let notes = scene.notes().await;
        assert_eq!(notes.len(), 27);
        let mut pieces = notes.clone();
        pieces.dedup();
        assert_eq!(pieces.len(), 11, "{notes:?}");
    });
}
