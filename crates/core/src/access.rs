//! Who may ask what over HTTP: bearer tokens and their scopes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::name::check_name;
use crate::{Error, FeedName, Result};

/// What a token allows. The later ones include the earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Reading one feed, written `read:FEED`.
    ReadFeed(FeedName),
    /// Reading everything, written `read`.
    Read,
    /// Also what changes no definition: pausing, delivering again, trimming. Written `operate`.
    Operate,
    /// Also creating and removing feeds, triggers, watches and tokens. Written `administer`.
    Administer,
}

impl Scope {
    /// Whether somebody with this scope may do what needs the other.
    pub fn allows(&self, needed: &Scope) -> bool {
        match (self, needed) {
            (Scope::ReadFeed(mine), Scope::ReadFeed(wanted)) => mine == wanted,
            (Scope::ReadFeed(_), _) => false,
            // The order of the variants is the order of the rights.
            (mine, wanted) => mine >= wanted,
        }
    }

    /// Reads a list as it is stored: scopes with spaces in between.
    pub fn parse_list(text: &str) -> Result<Vec<Scope>> {
        text.split_whitespace().map(str::parse).collect()
    }

    /// Writes such a list.
    pub fn list(scopes: &[Scope]) -> String {
        let words: Vec<String> = scopes.iter().map(ToString::to_string).collect();
        words.join(" ")
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::ReadFeed(feed) => write!(f, "read:{feed}"),
            Scope::Read => f.write_str("read"),
            Scope::Operate => f.write_str("operate"),
            Scope::Administer => f.write_str("administer"),
        }
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "read" => Ok(Scope::Read),
            "operate" => Ok(Scope::Operate),
            "administer" => Ok(Scope::Administer),
            other => match other.strip_prefix("read:") {
                Some(feed) => feed.parse().map(Scope::ReadFeed),
                None => Err(Error::invalid(format!("'{other}' is not a scope"))
                    .advise("use read:FEED, read, operate or administer")),
            },
        }
    }
}

impl Serialize for Scope {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The part of a token that is no secret: twelve lower-case letters and digits.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TokenId(String);

impl TokenId {
    /// Its length.
    pub const LENGTH: usize = 12;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TokenId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fine = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        if text.len() != Self::LENGTH || !text.bytes().all(fine) {
            // Not repeated: somebody may have typed the whole token.
            return Err(Error::invalid(
                "this is not the id of a token: it has 12 letters and digits",
            )
            .advise("`changefeed token list` shows the ids"));
        }
        Ok(TokenId(text.to_owned()))
    }
}

/// What is kept of a secret: its SHA-256. The secret itself has 256 random bits, so nothing slower
/// is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest(pub [u8; 32]);

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(…)")
    }
}

/// A token to be created.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Its id.
    pub id: TokenId,
    /// Who or what uses it.
    pub name: String,
    /// What is kept of its secret.
    pub digest: TokenDigest,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// When it expires.
    pub expires_after: Option<Duration>,
}

impl NewToken {
    /// Checks what can be checked without a database.
    pub fn validate(&self) -> Result<()> {
        check_name("token name", &self.name, 100)?;
        if self.scopes.is_empty() {
            return Err(Error::invalid("a token without a scope allows nothing")
                .advise("give it read:FEED, read, operate or administer"));
        }
        if self.scopes.len() > 100 {
            return Err(Error::invalid("a token has at most 100 scopes"));
        }
        Ok(())
    }
}

/// A token as the database stores it, without its secret.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct AccessToken {
    /// Its id.
    pub id: TokenId,
    /// Who or what uses it.
    pub name: String,
    /// What is kept of its secret.
    #[serde(skip)]
    pub digest: TokenDigest,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// When it was created, in RFC 3339.
    pub created_at: String,
    /// When it expires, in RFC 3339.
    pub expires_at: Option<String>,
    /// Whether it has expired, by the database's clock.
    pub expired: bool,
    /// When somebody took it back, in RFC 3339.
    pub revoked_at: Option<String>,
}

impl AccessToken {
    /// Whether it still opens anything.
    pub fn is_valid(&self) -> bool {
        !self.expired && self.revoked_at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written() {
        let text = "read:orders read operate administer";
        let scopes = Scope::parse_list(text).unwrap();
        assert_eq!(Scope::list(&scopes), text);
        for bad in ["write", "read:", "read:a b", "Read", ""] {
            assert!(bad.parse::<Scope>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_scope_includes_the_smaller_ones_and_no_other() {
        let scopes = Scope::parse_list("read:a read:b read operate administer").unwrap();
        // Rows have, columns need.
        let allowed = [
            [true, false, false, false, false],
            [false, true, false, false, false],
            [true, true, true, false, false],
            [true, true, true, true, false],
            [true, true, true, true, true],
        ];
        for (mine, row) in scopes.iter().zip(allowed) {
            for (wanted, expected) in scopes.iter().zip(row) {
                assert_eq!(mine.allows(wanted), expected, "{mine} for {wanted}");
            }
        }
    }

    #[test]
    fn an_id_that_is_a_whole_token_is_not_repeated() {
        let error = "cft_abcdefghijkl_secret".parse::<TokenId>().unwrap_err();
        assert!(!format!("{error:?}").contains("secret"));
    }
}
