//! Judges from another ecosystem.

use std::path::PathBuf;
use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend};
use changefeed_testkit::run;
use tokio::process::Command;

use crate::http::serving::{Serving, orders, out, token};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testkit/python")
}

fn interpreter() -> PathBuf {
    let python = std::env::var_os("CHANGEFEED_TEST_PYTHON").unwrap_or_else(|| {
        panic!(
            "CHANGEFEED_TEST_PYTHON must name a Python with crates/testkit/python/requirements.txt \
             installed; ./test does that"
        )
    });
    PathBuf::from(python)
}

/// One of our scripts.
pub(crate) fn python(script: &str) -> Command {
    let mut command = Command::new(interpreter());
    command.arg(folder().join(script)).kill_on_drop(true);
    command
}

/// It knows nothing but the description that the server gives of itself, and tries to find a request
/// that is answered otherwise.
async fn schemathesis(backend: Arc<dyn Backend>, phases: &str) {
    let url = orders(&backend).await;
    let app = backend.session().await;
    app.run("insert into orders values (1, 1, 'x'), (2, 2, 'y')")
        .await;
    let token = token(&url, "administer");
    // There must be something to describe, and a webhook that it makes up must not be called.
    let trigger =
        "trigger create paid --table orders --manual --insert --webhook http://127.0.0.1:9/";
    out(&url, &trigger.split(' ').collect::<Vec<_>>());
    let watch = "watch create mail --table orders --webhook http://127.0.0.1:9/";
    out(&url, &watch.split(' ').collect::<Vec<_>>());
    app.run("insert into orders values (3, 1, 'x')").await;
    let serving = Serving::start(&url, &["--only", "sweep,http"]);
    let scratch = tempfile::tempdir().unwrap();
    // Chance is for long runs, which may find something new; the others find what was found before.
    let seed: &[&str] = match std::env::var_os("CHANGEFEED_SOAK") {
        Some(_) => &[],
        None => &["--seed", "1"],
    };
    let output = Command::new(interpreter().with_file_name("schemathesis"))
        .arg("--config-file")
        .arg(folder().join("schemathesis.toml"))
        .args(["run", &format!("http://{}/api/openapi.json", serving.at)])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--phases", phases])
        .args(seed)
        .current_dir(scratch.path())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.contains("Tested"), "{said}");
}

/// The description is valid OpenAPI, and a client that was generated from it understands the answers.
#[test]
fn a_client_generated_from_the_description_reads_a_feed() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
        let url = orders(&backend).await;
        let app = backend.session().await;
        app.run("insert into orders values (1, 2, 'x'), (2, 4, 'y'), (3, 6, 'z')")
            .await;
        for command in [
            "trigger create paid --table orders --insert --webhook http://127.0.0.1:9/",
            "watch create mail --table orders --webhook http://127.0.0.1:9/",
        ] {
            out(&url, &command.split(' ').collect::<Vec<_>>());
        }
        app.run("insert into orders values (4, 8, 'e')").await;
        let token = token(&url, "administer");
        let serving = Serving::start(&url, &["--only", "sweep,http"]);
        let scratch = tempfile::tempdir().unwrap();
        let output = python("read_api.py")
            .args([&format!("http://{}", serving.at), &token, "orders"])
            .arg(scratch.path())
            .output()
            .await
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let read: Vec<serde_json::Value> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let printed: Vec<serde_json::Value> =
            out(&url, &["feed", "read", "orders", "--shard", "0", "--json"])
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
        assert_eq!(read.len(), 4);
        // The program says on each line which feed and shard it is of.
        for (change, line) in read.iter().zip(&printed) {
            for member in ["cursor", "change_id", "row"] {
                assert_eq!(change[member], line[member]);
            }
        }
    });
}

#[test]
fn schemathesis_finds_no_violation_on_sqlite() {
    run(async {
        let backend = Arc::new(SqliteBackend::fresh().await);
        schemathesis(backend, "coverage,fuzzing").await;
    });
}

/// What the description says of each field does not depend on the database; what random requests do
/// to it does.
#[test]
fn schemathesis_finds_no_violation_on_postgres() {
    run(async {
        let backend = Arc::new(PostgresBackend::fresh().await);
        schemathesis(backend, "fuzzing").await;
    });
}
