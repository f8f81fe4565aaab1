//! Opening files.

use changefeed_core::{FeedStore, Kind, SchemaState, SchemaStore};
use changefeed_sqlite::SqliteStore;

use crate::support::Lab;

#[tokio::test]
async fn a_missing_file_is_created_and_not_migrated() {
    let lab = Lab::bare().await;
    assert!(lab.path().exists());
    assert_eq!(lab.store.schema().await.unwrap(), SchemaState::Missing);
    let error = lab.store.feeds().await.unwrap_err();
    assert_eq!(error.kind(), Kind::SchemaMissing);
}

#[tokio::test]
async fn what_cannot_be_opened_gets_one_sentence_and_advice() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(
        &text,
        "these are notes, not a database, and long enough to see it".repeat(40),
    )
    .unwrap();
    let missing = dir.path().join("no/such/dir/x.db");
    for (path, sentence) in [
        (
            text.clone(),
            format!("'{}' is not an SQLite database", text.display()),
        ),
        (
            missing.clone(),
            format!(
                "'{}' cannot be opened: there is no directory '{}'",
                missing.display(),
                dir.path().join("no/such/dir").display()
            ),
        ),
        (
            dir.path().to_owned(),
            format!("'{}' is a directory", dir.path().display()),
        ),
        (
            ":memory:".into(),
            "a database in memory cannot be shared by several connections".to_owned(),
        ),
        (
            "".into(),
            "a database in memory cannot be shared by several connections".to_owned(),
        ),
    ] {
        let error = SqliteStore::open(&path).await.unwrap_err();
        assert_eq!(error.message(), sentence);
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.advice().is_some());
    }
}
