//! Tokens.

use changefeed_core::AccessToken;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenList {
    pub(crate) tokens: Vec<AccessToken>,
}

/// A token to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTokenIn {
    /// Who or what uses it.
    #[schema(pattern = "^[a-zA-Z0-9_-]+$", min_length = 1, max_length = 100)]
    pub(crate) name: String,
    /// `read:FEED`, `read`, `operate`, `administer`.
    #[schema(value_type = Vec<ScopeText>, min_items = 1, max_items = 100)]
    pub(crate) scopes: Vec<String>,
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3_155_760_000_000_u64)]
    pub(crate) expires_after_ms: Option<u64>,
}

/// What a token allows.
#[derive(Debug, ToSchema)]
#[schema(pattern = "^(read:[a-zA-Z0-9_-]{1,100}|read|operate|administer)$")]
#[allow(dead_code, reason = "only its description is used")]
pub(crate) struct ScopeText(String);

/// A new token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedToken {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) scopes: Vec<String>,
    pub(crate) expires_at: Option<String>,
    /// The token itself. Nobody can show it again.
    pub(crate) token: String,
}
