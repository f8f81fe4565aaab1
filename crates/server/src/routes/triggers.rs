//! Event triggers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use changefeed::{TriggerDefinition, keep_secrets};

use super::created;
use super::feeds::batch;
use crate::access::{Administrator, Operator, Reader};
use crate::app::App;
use crate::extract::{Body, IdempotencyKey, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::wire::feeds::{BackfillOut, BatchIn};
use crate::wire::triggers::{InvokeIn, InvokedOut, PauseIn, TriggerList, TriggerOut, TriggerText};

/// All event triggers, each with how its events stand.
#[utoipa::path(get, path = "/api/triggers", tag = "triggers",
    responses((status = 200, body = TriggerList), Problems))]
pub(crate) async fn list(State(app): State<Arc<App>>, _: Reader) -> Answer<Json<TriggerList>> {
    let states = app.db.trigger_states().await?;
    let triggers = app.db.triggers().await?;
    Ok(Json(TriggerList {
        triggers: triggers
            .iter()
            .map(|t| TriggerOut::new(t.definition(), &states))
            .collect(),
    }))
}

/// Create an event trigger.
#[utoipa::path(post, path = "/api/triggers", tag = "triggers", request_body = TriggerText,
    responses((status = 201, body = TriggerOut), Problems))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    _: Administrator,
    Body(new): Body<TriggerText>,
) -> Answer<Response> {
    let definition = judged(&app, new, None)?;
    let made = app.db.create_trigger(&definition, false).await?;
    // It may have made a feed.
    app.feeds.forget();
    Ok(created(TriggerOut::new(made.definition(), &[])))
}

/// The definition that was meant, if it may come over HTTP: it names no variable that is not allowed,
/// and its condition is in our own language. What was defined on the command line may stay as it is.
fn judged(
    app: &App,
    new: TriggerText,
    before: Option<&TriggerDefinition>,
) -> Answer<TriggerDefinition> {
    let mut definition = new.definition(&app.db)?;
    let whose = format!("trigger '{}'", definition.name);
    let delivery = before.map(|d| &d.delivery);
    keep_secrets(&mut definition.delivery, delivery)?;
    definition
        .delivery
        .restrict(&whose, &app.options.allowed_variables, delivery)?;
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
#[utoipa::path(get, path = "/api/triggers/{trigger}", tag = "triggers",
    params(("trigger" = String, Path)),
    responses((status = 200, body = TriggerOut), Problems))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    _: Reader,
    Segments(name): Segments<String>,
) -> Answer<Json<TriggerOut>> {
    let trigger = app.db.trigger(&name).await?;
    let states = app.db.trigger_states().await?;
    Ok(Json(TriggerOut::new(trigger.definition(), &states)))
}

/// Create an event trigger, or change it; its events stay.
#[utoipa::path(put, path = "/api/triggers/{trigger}", tag = "triggers",
    params(("trigger" = String, Path)), request_body = TriggerText,
    responses((status = 200, body = TriggerOut), Problems))]
pub(crate) async fn replace(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
    Body(new): Body<TriggerText>,
) -> Answer<Response> {
    if new.name != name {
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
    Ok(Json(TriggerOut::new(made.definition(), &[])).into_response())
}

/// Remove an event trigger; its events stay in the log.
#[utoipa::path(delete, path = "/api/triggers/{trigger}", tag = "triggers",
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
#[utoipa::path(post, path = "/api/triggers/{trigger}/pause", tag = "triggers",
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
#[utoipa::path(post, path = "/api/triggers/{trigger}/resume", tag = "triggers",
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
#[utoipa::path(post, path = "/api/triggers/{trigger}/invoke", tag = "triggers",
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
#[utoipa::path(post, path = "/api/triggers/{trigger}/backfill", tag = "triggers",
    params(("trigger" = String, Path)), request_body = BatchIn,
    responses((status = 200, body = BackfillOut), Problems))]
pub(crate) async fn backfill(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<BatchIn>,
) -> Answer<Json<BackfillOut>> {
    let size = batch(body.batch)?;
    let trigger = app.db.trigger(&name).await?;
    Ok(Json(trigger.backfill(size).await?.into()))
}
