//! What `doctor` says about the server and about who asks.

use changefeed_core::{Finding, SchemaStore, Severity};
use changefeed_sqlserver::{Platform, SqlServerStore};
use changefeed_testkit::backend::{Backend, SqlServerBackend};
use changefeed_testkit::run;

fn about<'a>(findings: &'a [Finding], subject: &str) -> Vec<&'a Finding> {
    let mut about = findings.iter().filter(|f| f.subject.starts_with(subject));
    about.by_ref().collect()
}

/// Before anything is installed, and afterwards.
#[test]
fn doctor_looks_at_server_clock_and_rights() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        let before = store.server_findings().await.unwrap();
        assert_eq!(about(&before, "clock").len(), 1, "{before:?}");
        assert!(
            about(&before, "user").is_empty(),
            "it may install: {before:?}"
        );
        store.migrate().await.unwrap();
        let findings = store.server_findings().await.unwrap();
        let server = about(&findings, "server");
        let expected = match store.platform() {
            Platform::SqlServer => Severity::Ok,
            Platform::Babelfish => Severity::Note,
        };
        assert_eq!(server[0].severity, expected, "{findings:?}");
        let user = about(&findings, "user");
        assert_eq!(user[0].severity, Severity::Ok, "{findings:?}");
        assert!(
            findings.iter().all(|f| f.severity < Severity::Problem),
            "{findings:?}"
        );
        let clock = about(&findings, "clock")[0];
        assert!(clock.severity <= Severity::Warning, "{clock:?}");
    });
}
