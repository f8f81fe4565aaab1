//! What `doctor` finds is said wherever somebody looks: by `status`, over HTTP, and by those who only read.

use std::process::{Output, Stdio};
use std::sync::Arc;

use changefeed_testkit::backend::{Backend, on_every_backend};
use changefeed_testkit::run;
use serde_json::Value;

use crate::http::serving::{Serving, changefeed, orders};

fn ran(url: &str, args: &str) -> (Output, String, String) {
    let args: Vec<&str> = args.split(' ').collect();
    let output = changefeed(url, &args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    (output, said, errors)
}

/// Severity, subject, message and advice, but for the clock, which may say another time.
fn sorted(findings: impl Iterator<Item = Value>) -> Vec<String> {
    let mut all: Vec<String> = findings
        .filter(|f| f["subject"] != "clock")
        .map(|f| f.to_string())
        .collect();
    all.sort();
    all
}

/// Only `doctor` knew, and the dashboard knew half of it.
#[test]
fn a_feed_that_went_deaf_is_told_of_everywhere() {
    run(on_every_backend(async |backend: Arc<dyn Backend>| {
        let url = orders(&backend).await;
        // Nobody mends it, and nobody sweeps.
        let serving = Serving::start(&url, &["--only", "http"]);
        let app = backend.session().await;
        app.run("drop table orders").await;

        let (_, doctor, _) = ran(&url, "doctor --json");
        let doctor = sorted(doctor.lines().map(|l| serde_json::from_str(l).unwrap()));
        let deaf: Vec<&String> = doctor
            .iter()
            .filter(|f| f.contains("feed orders") && f.contains("problem"))
            .collect();
        assert_eq!(deaf.len(), 1, "{doctor:?}");
        let over_http = serving.get("/api/findings").await.json(200);
        let over_http = sorted(over_http["findings"].as_array().unwrap().iter().cloned());
        assert_eq!(over_http, doctor);

        let urgent: Vec<String> = doctor
            .iter()
            .filter(|f| f.contains("\"problem\"") || f.contains("\"warning\""))
            .cloned()
            .collect();
        let (_, status, _) = ran(&url, "status --json");
        let status: Value = serde_json::from_str(&status).unwrap();
        let listed = |status: &Value| {
            let findings = status["findings"].as_array().unwrap();
            sorted(findings.iter().cloned())
        };
        assert_eq!(listed(&status), urgent);
        let status = serving.get("/api/status").await.json(200);
        assert_eq!(listed(&status), urgent);
        let (output, status, _) = ran(&url, "status");
        assert!(output.status.success());
        assert!(status.contains("PROBLEM  feed orders: "), "{status}");
        assert!(status.contains("feed drop"), "{status}");

        let (output, _, errors) = ran(&url, "feed images orders on");
        assert_eq!(output.status.code(), Some(1));
        assert!(
            errors.starts_with("error: ") && errors.contains("table"),
            "{errors}"
        );
    }));
}

/// A reader saw nothing, and did not learn why.
#[test]
fn who_reads_is_told_that_nobody_sweeps() {
    run(on_every_backend(async |backend: Arc<dyn Backend>| {
        let store = backend.installed().await;
        let url = orders(&backend).await;
        let app = backend.session().await;
        app.run("insert into orders values (1, 1, 'x')").await;
        let (_, read, said) = ran(&url, "feed read orders --shard 1");
        let (_, machine, said_to_machine) = ran(&url, "feed read orders --shard 1 --json");
        if !store.needs_sweeping() {
            assert_eq!((said.as_str(), said_to_machine.as_str()), ("", ""));
            assert_eq!(machine.lines().count(), 1);
            return;
        }
        assert!(read.starts_with("nothing to read"), "{read}");
        assert!(
            said.starts_with("warning: feed orders: 1 changes of shard 1 wait"),
            "{said}"
        );
        assert!(said.contains("hint: run `changefeed serve`"), "{said}");
        assert_eq!(machine, "");
        let said: Value = serde_json::from_str(&said_to_machine).unwrap();
        assert_eq!(said["severity"], "warning");
        backend.settle(&*store).await;
        let (_, read, said) = ran(&url, "feed read orders --shard 1 --json");
        assert_eq!((read.lines().count(), said.as_str()), (1, ""));
    }));
}
