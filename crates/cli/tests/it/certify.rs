//! `changefeed doctor --certify`: what it finds, what it writes, and that it leaves nothing behind.

use std::path::Path;
use std::process::{Command, Output};

use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::run;
use serde_json::Value;

fn certify(url: &str, report: &Path) -> Output {
    tokio::task::block_in_place(|| {
        Command::new(env!("CARGO_BIN_EXE_changefeed"))
            .args(["--db", url, "doctor", "--certify", "--duration", "300ms"])
            .arg("--report")
            .arg(report)
            .env_remove("CHANGEFEED_DB")
            .env_remove("RUST_LOG")
            .output()
            .unwrap()
    })
}

/// What the report of a server says on which everything holds.
fn held(url: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    let output = certify(url, &path);
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("holds "), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let parts = report["parts"].as_array().unwrap();
    assert!(parts.len() >= 10, "{parts:?}");
    assert!(parts.iter().all(|part| part["failure"].is_null()));
    let history = &report["history"];
    assert!(history["committed"].as_u64().unwrap() > 0, "{history}");
    assert!(history["changes"].as_u64().unwrap() > 0, "{history}");
    assert_eq!(history["violations"], serde_json::json!([]));
    report
}

#[test]
fn a_postgres_server_is_certified_in_a_database_that_is_gone_afterwards() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let report = held(&backend.url());
        assert!(report["history"]["ulid_transactions"].as_u64().unwrap() > 0);
        let version = report["facts"]["version"].as_str().unwrap();
        assert!(version.starts_with("PostgreSQL"), "{version}");
        let session = (&backend as &dyn Backend).session().await;
        let scratch = report["database"].as_str().unwrap();
        let left = format!("select count(*) from pg_database where datname = '{scratch}'");
        assert_eq!(session.number(&left).await, 0);
        // Plans within functions are among them.
        let plans = report["plans"].as_array().unwrap();
        let reads = |plan: &Value, table: &str| {
            let access = plan["access"].as_array().unwrap();
            access.iter().any(|access| access["table"] == table)
        };
        assert!(
            plans.iter().any(|plan| reads(plan, "numbered")),
            "{plans:?}"
        );
    });
}

#[test]
fn sqlite_is_certified_beside_the_file_that_is_named() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let report = held(&format!("sqlite:{}/mine.db", directory.path().display()));
        assert!(!report["plans"].as_array().unwrap().is_empty());
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

/// The server of `CHANGEFEED_TEST_SQLSERVER_URL`.
#[cfg(feature = "sqlserver-server")]
#[test]
fn a_sql_server_is_certified() {
    run(async {
        let report = held(&changefeed_testkit::sqlserver::server_url());
        let parts = report["parts"].as_array().unwrap();
        let named = |words: &str| {
            let name = |part: &Value| part["name"].as_str().unwrap().contains(words);
            parts.iter().any(name)
        };
        assert!(named("implicit transactions"), "{parts:?}");
    });
}

/// Whoever may not make a database is told so, and what helps.
#[test]
fn without_the_right_to_make_a_database_it_says_what_it_needs() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let session = (&backend as &dyn Backend).session().await;
        let user = format!("certify_{}", std::process::id());
        session.run(&format!("create role {user} login")).await;
        let url = backend.url();
        let (_, place) = url.split_once('@').unwrap();
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("report.json");
        let output = certify(&format!("postgres://{user}@{place}"), &report);
        session.run(&format!("drop role {user}")).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("may create databases"), "{said}");
        assert!(!report.exists());
    });
}
