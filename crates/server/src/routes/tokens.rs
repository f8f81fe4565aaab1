//! Tokens.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use changefeed_core::{Error, Scope, TokenId};

use super::created;
use super::feeds::age;
use crate::access::Administrator;
use crate::app::App;
use crate::extract::{Body, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::tokens::new_token;
use crate::wire::tokens::{CreatedToken, NewTokenIn, TokenList};

/// All tokens, without their secrets.
#[utoipa::path(get, path = "/api/tokens", operation_id = "list_tokens", tag = "tokens",
    responses((status = 200, body = TokenList), Problems))]
pub(crate) async fn list(State(app): State<Arc<App>>, _: Administrator) -> Answer<Json<TokenList>> {
    let tokens = app.db.store().tokens().await?;
    Ok(Json(TokenList { tokens }))
}

/// Create a token. The answer is the only place where it is ever shown.
#[utoipa::path(post, path = "/api/tokens", operation_id = "create_token", tag = "tokens", request_body = NewTokenIn,
    responses((status = 201, body = CreatedToken), Problems))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    _: Administrator,
    Body(body): Body<NewTokenIn>,
) -> Answer<Response> {
    let scopes: Result<Vec<Scope>, Error> = body.scopes.iter().map(|s| s.parse()).collect();
    let after = match body.expires_after_ms {
        Some(0) => return Err(Problem::invalid("this token would end at once")),
        Some(ms) => Some(Duration::from_millis(age(ms)?)),
        None => None,
    };
    let (new, token) = new_token(&body.name, scopes?, after)?;
    let made = app.db.store().create_token(&new).await?;
    app.access.forget();
    Ok(created(CreatedToken {
        id: made.id.to_string(),
        name: made.name,
        scopes: made.scopes.iter().map(ToString::to_string).collect(),
        expires_at: made.expires_at,
        token,
    }))
}

/// Revoke a token.
#[utoipa::path(delete, path = "/api/tokens/{id}", operation_id = "revoke_token", tag = "tokens",
    params(("id" = String, Path)),
    responses((status = 204), Problems))]
pub(crate) async fn revoke(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(id): Segments<String>,
) -> Answer<StatusCode> {
    // What is no id may be a whole token, and must not come back in an answer.
    let unknown = || {
        Error::not_found("there is no such token that is still valid")
            .advise("GET /api/tokens shows the tokens")
    };
    let id: TokenId = id.parse().map_err(|_| unknown())?;
    let revoked = app.db.store().revoke_token(&id).await?;
    app.access.forget();
    match revoked {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(unknown().into()),
    }
}
