//! Judges from another ecosystem.

use std::path::PathBuf;
use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use tokio::process::Command;

use crate::serving::{Serving, orders, token};

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
pub(crate) async fn schemathesis_finds_no_violation(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    backend
        .session()
        .await
        .run("insert into orders values (1, 1, 'x'), (2, 2, 'y')")
        .await;
    let token = token(&url, "administer");
    // A webhook that it makes up must not be called.
    let serving = Serving::start(&url, &["--only", "sweep,http"]);
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(interpreter().with_file_name("schemathesis"))
        .arg("--config-file")
        .arg(folder().join("schemathesis.toml"))
        .args(["run", &format!("http://{}/api/openapi.json", serving.at)])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .current_dir(scratch.path())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("Tested"), "{said}");
}
