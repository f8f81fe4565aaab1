//! What SQLite says, as errors with a kind and advice.

use std::path::Path;

use changefeed_core::{Error, Kind, Result};
use rusqlite::ErrorCode;

/// Turns the driver's errors into ours.
pub(crate) trait Explain<T> {
    /// The same result, with an error that has a kind.
    fn explained(self) -> Result<T>;
}

impl<T> Explain<T> for rusqlite::Result<T> {
    fn explained(self) -> Result<T> {
        self.map_err(explain)
    }
}

/// Our error for what SQLite answered.
pub(crate) fn explain(error: rusqlite::Error) -> Error {
    let said = match &error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        // Without the statement, which may be a whole migration.
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    };
    let explained = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::new(
            Kind::Busy,
            "another process has held the database's write lock for too long",
        )
        .advise("look for a transaction that was left open, or a process that was stopped"),
        Some(ErrorCode::OperationInterrupted) => Error::new(
            Kind::Unavailable,
            "a statement took longer than it may, and was interrupted",
        )
        .advise("look for views, triggers or conditions on the tables behind it that do not end"),
        Some(ErrorCode::ReadOnly) => Error::new(Kind::Permission, "the database file is read-only")
            .advise("make the file and its directory writable for this user"),
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            Error::new(Kind::Permission, format!("SQLite refused access: {said}"))
        }
        Some(ErrorCode::NotADatabase) => not_a_database(),
        Some(ErrorCode::DatabaseCorrupt) => Error::new(
            Kind::Database,
            format!("the database file is damaged: {said}"),
        )
        .advise("run `pragma integrity_check` in the sqlite3 shell"),
        Some(ErrorCode::DiskFull) => Error::new(Kind::Unavailable, "the disk is full")
            .advise("make room on the disk of the database file"),
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => Error::new(
            Kind::Unavailable,
            format!("the database file cannot be read or written: {said}"),
        ),
        _ => Error::new(Kind::Database, format!("SQLite: {said}")),
    };
    match error {
        rusqlite::Error::SqlInputError { .. } => explained,
        error => explained.caused_by(error),
    }
}

fn not_a_database() -> Error {
    Error::invalid("the file is not an SQLite database")
        .advise("check the path; an encrypted database cannot be opened either")
}

/// Why a file could not be opened, in one sentence with its name.
pub(crate) fn cannot_open(path: &Path, error: rusqlite::Error) -> Error {
    let name = path.display();
    let refused = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => {
            Error::invalid(format!("'{name}' is not an SQLite database"))
                .advise("check the path; an encrypted database cannot be opened either")
        }
        Some(ErrorCode::CannotOpen) => match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
                Error::invalid(format!(
                    "'{name}' cannot be opened: there is no directory '{}'",
                    parent.display()
                ))
                .advise("create the directory, or check the path")
            }
            _ if path.is_dir() => {
                Error::invalid(format!("'{name}' is a directory")).advise("name a file within it")
            }
            _ => Error::new(Kind::Unavailable, format!("'{name}' cannot be opened"))
                .advise("check that this user may read and write the file and its directory"),
        },
        _ => return explain(error),
    };
    refused.caused_by(error)
}
