//! Who asks, and what they may.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use changefeed_core::{AccessToken, FeedName, Scope, TokenId};
use changefeed_engine::Changefeed;
use futures_util::FutureExt;

use crate::kept::Kept;
use crate::problem::{Answer, Problem};
use crate::tokens::Presented;

/// How old the tokens may be that we go by: a revoked one opens nothing after that.
const FRESH: Duration = Duration::from_millis(1000);
/// A token that we do not know may be a new one; but looking is not free.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long a request waits for the database to tell its tokens; then it goes by those that were known last.
/// Data is not to be had from a database that hangs, and what tells why nothing works must be.
const PATIENCE: Duration = Duration::from_millis(1000);

/// The tokens of the database, kept for a moment.
pub(crate) struct Access {
    /// Whether a token is needed even if there has never been one.
    always: bool,
    kept: Kept<Arc<[AccessToken]>>,
}

/// What a caller may do.
#[derive(Debug, Clone)]
pub(crate) enum Rights {
    /// There are no tokens, and only this machine can ask.
    Everything,
    /// What a token allows.
    Token(TokenId, Arc<[Scope]>),
}

impl Access {
    /// `known` are the tokens that there were a moment ago.
    pub(crate) fn new(db: Changefeed, always: bool, known: Vec<AccessToken>) -> Self {
        let look = move || {
            let store = db.store().clone();
            async move { Ok(store.tokens().await?.into()) }.boxed()
        };
        Access {
            always,
            kept: Kept::new(look, Some(known.into())),
        }
    }

    /// Whether there are tokens, as far as is known.
    pub(crate) fn has_tokens(&self) -> bool {
        self.always || self.kept.last().is_some_and(|tokens| !tokens.is_empty())
    }

    /// Forgets what was known, because it has just been changed.
    pub(crate) fn forget(&self) {
        self.kept.forget();
    }

    /// Who asks, from the headers of a request.
    pub(crate) async fn rights(&self, headers: &HeaderMap) -> Answer<Rights> {
        let known = self.tokens(FRESH).await?;
        let Some(authorization) = headers.get(header::AUTHORIZATION) else {
            return match known.is_empty() && !self.always {
                true => Ok(Rights::Everything),
                false => Err(unauthorized("this needs a token")),
            };
        };
        let presented = authorization
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .and_then(|(_, token)| Presented::parse(token.trim()))
            .ok_or_else(|| unauthorized("this is not a token"))?;
        let mut known = known;
        if !known.iter().any(|token| token.id == presented.id) {
            known = self.tokens(LOOK_AGAIN).await?;
        }
        // The same sentence for a wrong id, a wrong secret and an end: nobody learns which.
        known
            .iter()
            .find(|token| token.id == presented.id)
            .filter(|token| presented.is(&token.digest) && token.is_valid())
            .map(|token| Rights::Token(token.id.clone(), token.scopes.clone().into()))
            .ok_or_else(|| unauthorized("this token is not valid"))
    }

    /// Whether rights that were given some time ago still stand.
    pub(crate) async fn still_holds(&self, rights: &Rights) -> bool {
        let Ok(known) = self.tokens(FRESH).await else {
            // A database that cannot be reached takes no rights away.
            return true;
        };
        match rights {
            Rights::Everything => known.is_empty(),
            Rights::Token(id, _) => known.iter().any(|t| t.id == *id && t.is_valid()),
        }
    }

    async fn tokens(&self, fresh: Duration) -> Answer<Arc<[AccessToken]>> {
        let last = self.kept.last();
        if let Some(last) = &last
            && self.kept.hangs(PATIENCE)
        {
            return Ok(last.clone());
        }
        match (
            tokio::time::timeout(PATIENCE, self.kept.get(fresh)).await,
            last,
        ) {
            (Ok(Ok(tokens)), _) => Ok(tokens),
            (_, Some(last)) => Ok(last),
            (Ok(Err(error)), None) => Err(error.into()),
            (Err(_), None) => Err(Problem::overloaded("the database does not answer")),
        }
    }
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail).advise(
        "send 'Authorization: Bearer cft_…'; `changefeed token create NAME --scope read` makes one",
    )
}

impl Rights {
    /// Refuses callers without this scope.
    pub(crate) fn need(&self, needed: &Scope) -> Answer<()> {
        match self {
            Rights::Everything => Ok(()),
            Rights::Token(_, scopes) if scopes.iter().any(|s| s.allows(needed)) => Ok(()),
            Rights::Token(_, scopes) => Err(Problem::forbidden(format!(
                "this needs the scope {needed}, and the token has {}",
                Scope::list(scopes)
            ))),
        }
    }

    /// Refuses callers that may not read this feed.
    pub(crate) fn need_feed(&self, feed: &FeedName) -> Answer<()> {
        self.need(&Scope::ReadFeed(feed.clone()))
    }

    /// What it may do, in words.
    pub(crate) fn scopes(&self) -> Vec<String> {
        match self {
            Rights::Everything => vec![Scope::Administer.to_string()],
            Rights::Token(_, scopes) => scopes.iter().map(ToString::to_string).collect(),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Rights {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // The gate puts them there before any handler runs.
        parts
            .extensions
            .get::<Rights>()
            .cloned()
            .ok_or_else(|| unauthorized("this needs a token"))
    }
}

macro_rules! caller {
    ($(#[$doc:meta])* $name:ident, $scope:expr) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
                Rights::from_request_parts(parts, state).await?.need(&$scope)?;
                Ok($name)
            }
        }
    };
}

caller!(
    /// Somebody who may read everything.
    Reader,
    Scope::Read
);
caller!(
    /// Somebody who may change the course of things.
    Operator,
    Scope::Operate
);
caller!(
    /// Somebody who may change definitions.
    Administrator,
    Scope::Administer
);
