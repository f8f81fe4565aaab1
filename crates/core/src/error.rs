//! One error type: what kind of thing went wrong, in one sentence, what caused it, and what the
//! person who reads it can do next.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;

/// The result of everything in changefeed.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong. Decisions are made by kind, never by message text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something malformed: a bad name, a page over the limit, a bad URL.
    Invalid,
    /// The named feed, shard, table, consumer or column does not exist.
    NotFound,
    /// The thing to be created is already there.
    AlreadyExists,
    /// The cursor points before what is still kept.
    CursorExpired,
    /// The cursor points behind the newest change: it comes from another feed or another database.
    CursorAhead,
    /// The database was recovered from a backup since the cursor was given.
    Recovered,
    /// Our tables are not installed.
    SchemaMissing,
    /// Our tables are older than this program.
    SchemaTooOld,
    /// Our tables are newer than this program.
    SchemaTooNew,
    /// The database user lacks a right.
    Permission,
    /// The database cannot be reached, or the connection broke.
    Unavailable,
    /// Somebody else holds what is needed; trying again later helps.
    Busy,
    /// What is stored is not what the caller believes, so nothing was changed. Doing the same
    /// again cannot help: look first.
    Moved,
    /// This database cannot do that.
    Unsupported,
    /// The database answered something that we did not expect.
    Database,
}

impl Kind {
    /// The word that programs decide by, in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Invalid => "invalid",
            Kind::NotFound => "not_found",
            Kind::AlreadyExists => "already_exists",
            Kind::CursorExpired => "cursor_expired",
            Kind::CursorAhead => "cursor_ahead",
            Kind::Recovered => "recovered",
            Kind::SchemaMissing | Kind::SchemaTooOld | Kind::SchemaTooNew => "schema",
            Kind::Permission => "permission",
            Kind::Unavailable => "unavailable",
            Kind::Busy => "busy",
            Kind::Moved => "moved",
            Kind::Unsupported => "unsupported",
            Kind::Database => "database",
        }
    }
}

/// What to do about an [`Error`], decided by its [`Kind`] alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Try again after a pause: the cause may pass by itself.
    Retry,
    /// A person has to change something first.
    Human,
}

impl Kind {
    /// What a loop should do when it meets an error of this kind.
    pub fn remedy(self) -> Remedy {
        match self {
            Kind::Unavailable | Kind::Busy | Kind::Database => Remedy::Retry,
            _ => Remedy::Human,
        }
    }
}

/// An error with a kind, one sentence, optional advice, and its source.
pub struct Error {
    kind: Kind,
    message: Cow<'static, str>,
    advice: Option<Cow<'static, str>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error; `message` is one sentence without a final full stop.
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Error {
            kind,
            message: message.into(),
            advice: None,
            source: None,
        }
    }

    /// Shorthand for a [`Kind::Invalid`] error.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Kind::Invalid, message)
    }

    /// Shorthand for a [`Kind::NotFound`] error.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Kind::NotFound, message)
    }

    /// What only a mistake of ours can cause.
    pub fn defect(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Kind::Database, message)
            .advise("this is a defect of changefeed; please report it")
    }

    /// A column of an answer that is missing, null or of another type than the statement promises.
    pub fn unreadable(column: impl fmt::Display, asked: &Location<'_>) -> Self {
        Error::defect(format!(
            "column {column} of the answer to the statement in {}:{} is not what was expected",
            asked.file(),
            asked.line()
        ))
    }

    /// Adds the next step for the person who reads this.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Keeps what caused this error.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The sentence, without advice.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The next step, where there is one.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        if let Some(advice) = &self.advice {
            write!(f, " ({advice})")?;
        }
        if let Some(source) = &self.source {
            write!(f, ": {source:?}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|s| s as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_sentence_advice_and_source() {
        let error = Error::not_found("there is no feed 'x'")
            .advise("`changefeed feed list` shows the feeds")
            .caused_by(std::io::Error::other("disk"));
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(error.to_string(), "there is no feed 'x'");
        assert_eq!(
            error.advice(),
            Some("`changefeed feed list` shows the feeds")
        );
        assert_eq!(
            error.source().map(ToString::to_string).as_deref(),
            Some("disk")
        );
        assert_eq!(error.kind().remedy(), Remedy::Human);
        assert_eq!(Kind::Unavailable.remedy(), Remedy::Retry);
    }
}
