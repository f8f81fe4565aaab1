//! `changefeed token`, as written.

use std::time::Duration;

use changefeed::{Scope, TokenId};
use clap::Subcommand;

use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Create a token; it is shown once and never again
    Create {
        /// Who or what will use it
        name: String,
        /// What it allows: read:FEED, read, operate or administer; may be given several times
        #[arg(long, required = true, value_delimiter = ',')]
        scope: Vec<Scope>,
        /// When it expires; never unless given
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires_after: Option<Duration>,
    },
    /// List the tokens, without their secrets
    List,
    /// Revoke a token
    Revoke {
        /// Its id
        id: TokenId,
    },
}
