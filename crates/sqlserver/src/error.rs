//! What the server says, in our words. Decided by error number, never by message text, except where
//! Babelfish has no number for it.

use changefeed_core::{Error, Kind, words};

/// A row is there already: primary key, unique index.
const DUPLICATE: [u32; 2] = [2627, 2601];
/// There is no such object, no such column, or no index to seek in.
const UNDEFINED: [u32; 3] = [208, 207, 8622];

/// Azure: moving, throttled, too many requests, out of reach. Shutting down, being upgraded, starting. The database: being
/// recovered, restored, offline, in transition, suspect, or for one user. A replica that cannot be used at present, or
/// that is no primary any more.
const UNAVAILABLE: [u32; 32] = [
    40613, 40501, 40197, 40143, 40166, 10928, 10929, 49918, 49919, 49920, 42108, 42109, 6005, 6006,
    596, 17830, 18401, 921, 922, 924, 926, 927, 942, 945, 952, 976, 978, 983, 988, 4221, 3906, 615,
];

/// What Babelfish says of errors of PostgreSQL that SQL Server does not have.
const UNMAPPED: u32 = 33_557_097;

/// A ULID transaction found a holder that is silent.
pub(crate) const INCIDENT: u32 = 55601;

/// Turns an error of the driver into ours.
pub(crate) fn db(error: tiberius::error::Error) -> Error {
    let (code, message) = match &error {
        tiberius::error::Error::Server(reported) => {
            (reported.code(), reported.message().to_owned())
        }
        tiberius::error::Error::Tls(_) => {
            return Error::new(
                Kind::Unavailable,
                "the server and we could not agree on an encrypted connection",
            )
            .advise(
                "if its certificate is its own, add trust_server_certificate=true to the URL, or \
                 name the authority with trust_server_certificate_ca=FILE",
            )
            .caused_by(error);
        }
        tiberius::error::Error::Io { .. } => {
            return words::server_unreachable("SQL Server").caused_by(error);
        }
        _ => {
            return words::server_misunderstood("SQL Server").caused_by(error);
        }
    };
    said(code, message)
}

/// What an error that the server reported means.
fn said(code: u32, message: String) -> Error {
    match code {
        18456 | 18452 | 18470 | 18487 | 18488 => words::login_refused(&message),
        4060 | 911 => {
            Error::new(Kind::NotFound, message).advise("create it, or correct the database URL")
        }
        // Permission denied on an object, a column, a statement; no view of the definition; a trigger
        // that may not be dropped, a table that may not get one.
        229 | 230 | 262 | 297 | 300 | 371 | 916 | 1088 | 2760 | 3701 | 3704 | 8197 | 15151
        | 15247 | 15562 => lacks_a_right(&message),
        UNMAPPED
            if message.starts_with("permission denied") || message.starts_with("must be owner") =>
        {
            lacks_a_right(&message)
        }
        // ULID transactions: an incident, others at work, judged dead, misuse.
        INCIDENT | 55602 => Error::new(Kind::Busy, message).advise("try again"),
        55603 => Error::new(Kind::Busy, message).advise("do the transaction again"),
        55604 => Error::invalid(message),
        // What our own guards refuse.
        55401 | 55402 => Error::invalid(message),
        // Deadlock victim, lock timeout, no room for a lock, snapshot conflict; what was read without a
        // lock moved meanwhile.
        1205 | 1222 | 1204 | 3960 | 3961 | 601 => Error::new(Kind::Busy, message),
        _ if UNAVAILABLE.contains(&code) => words::server_unavailable(&message),
        UNMAPPED if message.starts_with("the database system is ") => {
            words::server_unavailable(&message)
        }
        _ => Error::new(Kind::Database, format!("{message} (error {code})")),
    }
}

fn lacks_a_right(message: &str) -> Error {
    words::right_missing(message).advise(
        "grant it, or add the user to changefeed_reader, changefeed_writer or changefeed_admin; \
         docs/sqlserver.md lists what each may do",
    )
}

/// Whether a row with this key is there already.
pub(crate) fn is_duplicate(error: &tiberius::error::Error) -> bool {
    error.code().is_some_and(|code| DUPLICATE.contains(&code))
}

/// Whether a row refers to one that is not there, or a value is not allowed. Triggers of ours say
/// so where there are no foreign keys.
pub(crate) fn is_constraint(error: &tiberius::error::Error) -> bool {
    matches!(error.code(), Some(547 | 55303))
}

/// Whether the error says that a table, a column or the index of a key is not there (any more).
pub(crate) fn is_undefined(error: &tiberius::error::Error) -> bool {
    match error {
        // Babelfish has one number for all that SQL Server's numbers do not say.
        tiberius::error::Error::Server(reported) if reported.code() == UNMAPPED => {
            reported.message().ends_with("does not exist")
        }
        _ => error.code().is_some_and(|code| UNDEFINED.contains(&code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over HTTP the difference between 503, which a client tries again, and 500 or 404, which it does not.
    #[test]
    fn a_database_that_is_not_there_yet_is_unavailable() {
        for code in [921, 922, 927, 942, 945, 952, 976, 983, 3906, 18401, 40613] {
            let error = said(code, "Database 'shop' is being recovered.".to_owned());
            assert_eq!(error.kind(), Kind::Unavailable, "{code}");
        }
        for message in ["starting up", "in recovery mode", "shutting down"] {
            let error = said(UNMAPPED, format!("the database system is {message}"));
            assert_eq!(error.kind(), Kind::Unavailable, "{message}");
        }
        assert_eq!(
            said(4060, "Cannot open it".to_owned()).kind(),
            Kind::NotFound
        );
        assert_eq!(
            said(8134, "Divide by zero".to_owned()).kind(),
            Kind::Database
        );
    }
}
