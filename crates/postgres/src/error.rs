//! What the server says, in our words. Decided by SQLSTATE, never by message text.

use changefeed_core::{Error, Kind, words};
use tokio_postgres::error::SqlState;

/// Turns an error of the driver into ours.
pub(crate) fn db(error: tokio_postgres::Error) -> Error {
    let Some(reported) = error.as_db_error() else {
        return unreported(error);
    };
    let message = reported.message().to_owned();
    let hint = reported.hint().map(str::to_owned);
    let code = reported.code().clone();
    match &code {
        c if *c == SqlState::INVALID_PASSWORD
            || *c == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            words::login_refused(&message)
        }
        c if *c == SqlState::INVALID_CATALOG_NAME => {
            Error::new(Kind::NotFound, message).advise("create it, or correct the database URL")
        }
        c if *c == SqlState::INSUFFICIENT_PRIVILEGE => words::right_missing(&message)
        .advise("grant it, or run as the role that installed changefeed; docs/postgres.md lists what each role needs"),
        // What pgbouncer says to a setting that it cannot keep, and what the server says to a
        // statement that was prepared in another session.
        c if *c == SqlState::PROTOCOL_VIOLATION
            || *c == SqlState::INVALID_SQL_STATEMENT_NAME
            || *c == SqlState::DUPLICATE_PSTATEMENT =>
        {
            crate::connect::pooled().caused_by(error)
        }
        c if *c == SqlState::ADMIN_SHUTDOWN
            || *c == SqlState::CRASH_SHUTDOWN
            || *c == SqlState::CANNOT_CONNECT_NOW
            || *c == SqlState::TOO_MANY_CONNECTIONS =>
        {
            words::server_unavailable(&message)
        }
        c if *c == SqlState::T_R_SERIALIZATION_FAILURE
            || *c == SqlState::T_R_DEADLOCK_DETECTED
            || *c == SqlState::LOCK_NOT_AVAILABLE =>
        {
            Error::new(Kind::Busy, message)
        }
        code => {
            if let Some(error) = crate::ulids::explain(code.code(), message.clone()) {
                return error;
            }
            let text = message.strip_prefix("changefeed: ").unwrap_or(&message);
            let built = match reading(code) {
                Some(kind) => Error::new(kind, text.to_owned()),
                None => Error::new(
                    Kind::Database,
                    format!("{message} (SQLSTATE {})", code.code()),
                ),
            };
            match hint {
                Some(hint) => built.advise(hint),
                None => built,
            }
        }
    }
}

/// Turns an error while connecting into ours. It names the server, because the user may have meant another one.
pub(crate) fn dialling(error: tokio_postgres::Error, server: &str) -> Error {
    match error.as_db_error() {
        Some(_) => db(error),
        None => lost(error, server),
    }
}

/// An error that the server did not report.
fn unreported(error: tokio_postgres::Error) -> Error {
    lost(error, "PostgreSQL server")
}

/// Either the way to the server is broken, or the driver could not make sense of what it sent.
fn lost(error: tokio_postgres::Error, server: &str) -> Error {
    let mut cause = std::error::Error::source(&error);
    // A timeout while connecting has no cause at all.
    let mut broken = error.is_closed() || cause.is_none();
    while let Some(inner) = cause {
        broken |= inner.is::<std::io::Error>();
        cause = inner.source();
    }
    if broken {
        words::server_unreachable(server).caused_by(error)
    } else {
        words::server_misunderstood(server).caused_by(error)
    }
}

/// What the codes of our functions that read mean.
fn reading(code: &SqlState) -> Option<Kind> {
    Some(match code.code() {
        "CF101" => Kind::CursorExpired,
        "CF102" => Kind::CursorAhead,
        "CF107" => Kind::Recovered,
        "CF103" => Kind::NotFound,
        // The table was replaced by another one at this moment.
        "CF104" => Kind::Busy,
        "CF105" => Kind::Unsupported,
        "CF106" => Kind::Permission,
        _ => return None,
    })
}

/// Whether the error says that there is no such shard.
pub(crate) fn is_unknown(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|c| c.code() == "CF103")
}

/// Whether the error says that another table is where one is expected; a parameter whose type was dropped is
/// an internal error to the server.
pub(crate) fn is_replaced(error: &tokio_postgres::Error) -> bool {
    is_undefined(error)
        || error.code().is_some_and(|c| {
            c.code() == "CF104"
                || *c == SqlState::UNDEFINED_FUNCTION
                || *c == SqlState::INTERNAL_ERROR
        })
}

/// The code of an error of a ULID transaction.
pub(crate) fn ulid_code(error: &tokio_postgres::Error) -> Option<&str> {
    error
        .code()
        .map(SqlState::code)
        .filter(|code| code.starts_with("CF0"))
}

/// Whether the error says that a table or column is not there (any more).
pub(crate) fn is_undefined(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|c| *c == SqlState::UNDEFINED_TABLE || *c == SqlState::UNDEFINED_COLUMN)
}
