//! Watches.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use changefeed_core::{NewWatch, ParkedRows, Sink, Watch, WatchSpec, WatchStatus};
use changefeed_engine::sinks::webhook;

use super::created;
use crate::access::{Administrator, Operator, Reader};
use crate::app::App;
use crate::extract::{Body, Params, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::wire::watches::{ResetIn, RetriedOut, RetryIn, WatchList, WatchQuery};

/// All watches and their backlogs.
#[utoipa::path(get, path = "/api/watches", operation_id = "list_watches", tag = "watches",
    responses((status = 200, body = WatchList), Problems))]
pub(crate) async fn list(State(app): State<Arc<App>>, _: Reader) -> Answer<Json<WatchList>> {
    let watches = app.db.watch_statuses().await?;
    Ok(Json(WatchList { watches }))
}

/// Define a watch that `changefeed serve` runs.
#[utoipa::path(post, path = "/api/watches", operation_id = "create_watch", tag = "watches", request_body = NewWatch,
    responses((status = 201, body = WatchStatus), Problems))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    _: Administrator,
    Body(new): Body<NewWatch>,
) -> Answer<Response> {
    // What is shown of one watch is not the address of another.
    let new = judged(&app, new, None)?;
    let name = &new.name;
    let store = app.db.store();
    if store.watches().await?.iter().any(|w| w.name == *name) {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "already_exists",
            format!("there is a watch '{name}' already"),
        )
        .advise("PUT /api/watches/{watch} changes it"));
    }
    let watch = store.open_watch(&WatchSpec::from(new)).await?;
    Ok(created(app.db.watch_status(&watch, 0).await?))
}

/// The definition that was meant, if it may come over HTTP.
fn judged(app: &App, mut new: NewWatch, before: Option<&Sink>) -> Answer<NewWatch> {
    let whose = format!("watch '{}'", new.name);
    let sink = &mut new.definition.sink;
    webhook::keep_secrets(sink, before)?;
    sink.restrict(&whose, &app.options.allowed_variables, before)?;
    if sink.as_webhook().is_none() {
        return Err(Problem::invalid(format!("{whose} has no webhook")).advise("add 'webhook'"));
    }
    webhook::Target::check(&whose, sink)?;
    Ok(new)
}

/// Define a watch that `changefeed serve` runs, or change it; it goes on where it is.
#[utoipa::path(put, path = "/api/watches/{watch}", operation_id = "put_watch", tag = "watches",
    params(("watch" = String, Path)), request_body = NewWatch,
    responses((status = 200, body = WatchStatus), Problems))]
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
    Body(new): Body<NewWatch>,
) -> Answer<Json<WatchStatus>> {
    if new.name.as_str() != name {
        return Err(Problem::invalid(format!(
            "the body is about watch '{}', the path about '{name}'",
            new.name
        )));
    }
    let store = app.db.store();
    let watches = store.watches().await?;
    let before = watches.iter().find(|w| w.name == new.name);
    let before = before.and_then(|w| w.definition.as_ref());
    let new = judged(&app, new, before.map(|d| &d.sink))?;
    let spec = WatchSpec {
        replace: true,
        ..WatchSpec::from(new)
    };
    let watch = store.open_watch(&spec).await?;
    Ok(Json(app.db.watch_status(&watch, 0).await?))
}

async fn find(app: &App, name: &str) -> Answer<Watch> {
    let watches = app.db.store().watches().await?;
    watches
        .into_iter()
        .find(|w| w.name.as_str() == name)
        .ok_or_else(|| {
            Problem::new(
                StatusCode::NOT_FOUND,
                "not_found",
                format!("there is no watch '{name}'"),
            )
            .advise("GET /api/watches shows the watches")
        })
}

/// One watch, with its parked changes.
#[utoipa::path(get, path = "/api/watches/{watch}", operation_id = "get_watch", tag = "watches",
    params(("watch" = String, Path), WatchQuery),
    responses((status = 200, body = WatchStatus), Problems))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    _: Reader,
    Segments(name): Segments<String>,
    Params(query): Params<WatchQuery>,
) -> Answer<Json<WatchStatus>> {
    let parked = query.parked.unwrap_or(100);
    if parked > 1000 {
        return Err(Problem::invalid(format!(
            "{parked} parked changes are too many to show: ask for at most 1000"
        )));
    }
    let watch = find(&app, &name).await?;
    Ok(Json(app.db.watch_status(&watch, parked).await?))
}

/// Remove a watch with its backlog.
#[utoipa::path(delete, path = "/api/watches/{watch}", operation_id = "delete_watch", tag = "watches",
    params(("watch" = String, Path)),
    responses((status = 204), Problems))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
) -> Answer<StatusCode> {
    let watch = find(&app, &name).await?;
    app.db.store().drop_watch(&watch).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Give parked changes another round of attempts.
#[utoipa::path(post, path = "/api/watches/{watch}/retry", operation_id = "retry_watch", tag = "watches",
    params(("watch" = String, Path)), request_body = RetryIn,
    responses((status = 200, body = RetriedOut), Problems))]
pub(crate) async fn retry(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<RetryIn>,
) -> Answer<Json<RetriedOut>> {
    let which = match body.version {
        None => ParkedRows::All,
        Some(text) => ParkedRows::Version(
            text.parse()
                .map_err(|_| Problem::invalid(format!("'{text}' is not a version")))?,
        ),
    };
    let watch = find(&app, &name).await?;
    let retried = app.db.store().retry_parked(&watch, which).await?;
    Ok(Json(RetriedOut { retried }))
}

/// Forget what a function was handed and start it over.
#[utoipa::path(post, path = "/api/watches/{watch}/reset", operation_id = "reset_watch", tag = "watches",
    params(("watch" = String, Path)), request_body = ResetIn,
    responses((status = 204), Problems))]
pub(crate) async fn reset(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
    Body(body): Body<ResetIn>,
) -> Answer<StatusCode> {
    let watch = find(&app, &name).await?;
    app.db.store().reset_watch(&watch, body.from).await?;
    Ok(StatusCode::NO_CONTENT)
}
