//! What `doctor` says about the server and about who asks.

use changefeed_core::{Finding, Kind, SchemaStore, Severity};
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

/// The library that this program comes from has tables of the same names in a schema of the same name.
#[test]
fn a_schema_that_is_not_ours_is_refused_with_a_sentence() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        let session = (&backend as &dyn Backend).session().await;
        let refused = async |words: &str| {
            for error in [
                store.migrate().await.unwrap_err(),
                store.server_findings().await.unwrap_err(),
                store.uninstall().await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
                assert!(error.message().contains(words), "{error:?}");
            }
        };
        session.run("create schema changefeed").await;
        refused("an empty schema").await;
        session.run("create table changefeed.mine (id int)").await;
        refused("has not made").await;
        session
            .run("create table changefeed.change (feed_id smallint, shard smallint, change_id bigint)")
            .await;
        session
            .run("create procedure changefeed.sweep_loop as select 1")
            .await;
        refused("mssql-changefeed").await;
    });
}
