//! Event triggers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use changefeed_core::view::TriggerView;
use changefeed_core::{Backfill, TriggerDefinition};
use changefeed_engine::sinks::webhook::keep_secrets;

use super::created;
use super::feeds::batch;
use crate::access::{Administrator, Operator, Reader};
use crate::app::App;
use crate::extract::{Body, IdempotencyKey, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::wire::feeds::BatchIn;
use crate::wire::triggers::{InvokeIn, InvokedOut, PauseIn, TriggerList};

/// All event triggers, each with how its events stand.
#[utoipa::path(get, path = "/api/triggers", operation_id = "list_triggers", tag = "triggers",
    responses((status = 200, body = TriggerList), Problems))]
pub(crate) async fn list(State(app): State<Arc<App>>, _: Reader) -> Answer<Json<TriggerList>> {
    let states = app.db.trigger_states().await?;
    let triggers = app.db.triggers().await?;
    Ok(Json(TriggerList {
        triggers: triggers.iter().map(|t| t.view(&states)).collect(),
    }))
}

/// Create an event trigger.
#[utoipa::path(post, path = "/api/triggers", operation_id = "create_trigger", tag = "triggers", request_body = TriggerDefinition,
    responses((status = 201, body = TriggerView), Problems))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    _: Administrator,
    Body(new): Body<TriggerDefinition>,
) -> Answer<Response> {
    let definition = judged(&app, new, None)?;
    let made = app.db.create_trigger(&definition, false).await?;
    // It may have made a feed.
    app.feeds.forget();
    Ok(created(made.view(&[])))
}

/// The definition that was meant, if it may come over HTTP: it names no variable that is not allowed,
/// and its condition is in our own language. What was defined on the command line may stay as it is.
fn judged(
    app: &App,
    mut definition: TriggerDefinition,
    before: Option<&TriggerDefinition>,
) -> Answer<TriggerDefinition> {
    let whose = format!("trigger '{}'", definition.name);
    let (sink, stored) = (
        &mut definition.delivery.sink,
        before.map(|d| &d.delivery.sink),
    );
    keep_secrets(sink, stored)?;
    sink.restrict(&whose, &app.options.allowed_variables, stored)?;
    let condition = &mut definition.capture.condition;
    let stays = before.is_some_and(|d| d.capture.condition == *condition);
    if let Some(text) = condition
        && !stays
    {
        *text = app.db.condition(text)?;
    }
    Ok(definition)
}

/// One event trigger.
#[utoipa::path(get, path = "/api/triggers/{trigger}", operation_id = "get_trigger", tag = "triggers",
    params(("trigger" = String, Path)),
    responses((status = 200, body = TriggerView), Problems))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    _: Reader,
    Segments(name): Segments<String>,
) -> Answer<Json<TriggerView>> {
    let trigger = app.db.trigger(&name).await?;
    let states = app.db.trigger_states().await?;
    Ok(Json(trigger.view(&states)))
}

/// Create an event trigger, or change it; its events stay.
#[utoipa::path(put, path = "/api/triggers/{trigger}", operation_id = "put_trigger", tag = "triggers",
    params(("trigger" = String, Path)), request_body = TriggerDefinition,
    responses((status = 200, body = TriggerView), Problems))]
pub(crate) async fn replace(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
    Body(new): Body<TriggerDefinition>,
) -> Answer<Response> {
    if new.name.as_str() != name {
        return Err(Problem::invalid(format!(
            "the body is about trigger '{}', the path about '{name}'",
            new.name
        )));
    }
    let triggers = app.db.triggers().await?;
    let before = triggers
        .iter()
        .map(|t| &t.definition().definition)
        .find(|d| d.name.as_str() == name);
    let definition = judged(&app, new, before)?;
    let made = app.db.create_trigger(&definition, true).await?;
    app.feeds.forget();
    Ok(Json(made.view(&[])).into_response())
}

/// Remove an event trigger; its events stay in the log.
#[utoipa::path(delete, path = "/api/triggers/{trigger}", operation_id = "delete_trigger", tag = "triggers",
    params(("trigger" = String, Path)),
    responses((status = 204), Problems))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
) -> Answer<StatusCode> {
    app.db.trigger(&name).await?.drop_trigger().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stop deliveries; changes are captured all the same.
#[utoipa::path(post, path = "/api/triggers/{trigger}/pause", operation_id = "pause_trigger", tag = "triggers",
    params(("trigger" = String, Path)), request_body = PauseIn,
    responses((status = 204), Problems))]
pub(crate) async fn pause(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<PauseIn>,
) -> Answer<StatusCode> {
    if body.reason.is_empty() || body.reason.chars().count() > 1000 {
        return Err(Problem::invalid("a reason has 1 to 1000 characters"));
    }
    app.db.trigger(&name).await?.pause(&body.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Go on with deliveries.
#[utoipa::path(post, path = "/api/triggers/{trigger}/resume", operation_id = "resume_trigger", tag = "triggers",
    params(("trigger" = String, Path)),
    responses((status = 204), Problems))]
pub(crate) async fn resume(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
) -> Answer<StatusCode> {
    app.db.trigger(&name).await?.resume().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send an event by hand. A request that is repeated with its `Idempotency-Key` within a day sends
/// nothing, and is answered with the event of the first.
#[utoipa::path(post, path = "/api/triggers/{trigger}/invoke", operation_id = "invoke_trigger", tag = "triggers",
    params(("trigger" = String, Path),
           ("Idempotency-Key" = Option<String>, Header, format = Uuid, description = "a UUID")),
    request_body = InvokeIn,
    responses((status = 201, body = InvokedOut), Problems))]
pub(crate) async fn invoke(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    IdempotencyKey(key): IdempotencyKey,
    Body(body): Body<InvokeIn>,
) -> Answer<Response> {
    if !body.payload.get().starts_with('{') {
        return Err(Problem::invalid("the payload is not a JSON object"));
    }
    let trigger = app.db.trigger(&name).await?;
    let event = match key {
        Some(key) => trigger.invoke_once(&body.payload, key).await?,
        None => trigger.invoke(body.payload).await?,
    };
    Ok(created(InvokedOut {
        event_id: event.to_string(),
    }))
}

/// One step of making events of the rows that are there already.
#[utoipa::path(post, path = "/api/triggers/{trigger}/backfill", operation_id = "backfill_trigger", tag = "triggers",
    params(("trigger" = String, Path)), request_body = BatchIn,
    responses((status = 200, body = Backfill), Problems))]
pub(crate) async fn backfill(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<BatchIn>,
) -> Answer<Json<Backfill>> {
    let size = batch(body.batch)?;
    let trigger = app.db.trigger(&name).await?;
    Ok(Json(trigger.backfill(size).await?))
}
