//! Events of the log.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use changefeed_core::view::EventDetail;
use changefeed_core::{CleanUp, Cleaned, Error, EventId, Redelivery, Uuid};

use super::feeds::{age, batch};
use crate::access::{Operator, Reader};
use crate::app::App;
use crate::extract::{Body, IdempotencyKey, Params, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::wire::events::{CleanUpIn, EventList, EventsOut, EventsQuery, RedeliverIn};

/// Events that are shown at a time, at most and unless somebody asks for another number.
const MOST: usize = 1000;
const DEFAULT: usize = 100;

/// Events, newest first.
#[utoipa::path(get, path = "/api/events", operation_id = "list_events", tag = "events", params(EventsQuery),
    responses((status = 200, body = EventList), Problems))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    _: Reader,
    Params(query): Params<EventsQuery>,
) -> Answer<Json<EventList>> {
    let limit = query.limit.unwrap_or(DEFAULT);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::invalid(format!(
            "a page of {limit} events is not possible: ask for 1 to {MOST}"
        )));
    }
    let events = app.db.events(&query.filter()?, limit).await?;
    let before = (events.len() == limit)
        .then(|| events.last().map(|e| e.event.change_id.to_string()))
        .flatten();
    Ok(Json(EventList { events, before }))
}

fn id(text: &str) -> Answer<EventId> {
    // Nothing but an event's id can be the id of an event.
    text.parse().map_err(|_| unknown(text))
}

fn unknown(id: &str) -> Problem {
    Error::not_found(format!("there is no event '{id}'"))
        .advise("GET /api/events shows the events")
        .into()
}

/// One event with every attempt, its request and its response.
#[utoipa::path(get, path = "/api/events/{id}", operation_id = "get_event", tag = "events",
    params(("id" = String, Path, format = Uuid)),
    responses((status = 200, body = EventDetail), Problems))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    _: Reader,
    Segments(text): Segments<String>,
) -> Answer<Json<EventDetail>> {
    let (event, attempts) = app
        .db
        .event(id(&text)?)
        .await?
        .ok_or_else(|| unknown(&text))?;
    Ok(Json(EventDetail { event, attempts }))
}

/// Deliver an event again, from the first attempt on. A request that is repeated with its
/// `Idempotency-Key` within a day delivers nothing.
#[utoipa::path(post, path = "/api/events/{id}/redeliver", operation_id = "redeliver_event", tag = "events",
    params(("id" = String, Path, format = Uuid),
           ("Idempotency-Key" = Option<String>, Header, format = Uuid, description = "a UUID")),
    responses((status = 200, body = EventsOut), Problems))]
pub(crate) async fn redeliver(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(text): Segments<String>,
    IdempotencyKey(key): IdempotencyKey,
) -> Answer<Json<EventsOut>> {
    again(&app, &Redelivery::Event(id(&text)?), key).await
}

async fn again(app: &App, which: &Redelivery, key: Option<Uuid>) -> Answer<Json<EventsOut>> {
    let events = match key {
        Some(key) => app.db.redeliver_once(which, key).await?,
        None => app.db.redeliver(which).await?,
    };
    Ok(Json(EventsOut { events }))
}

/// Deliver all of these events again that are not waiting for an attempt anyway. A request that is
/// repeated with its `Idempotency-Key` within a day goes on where the first one ended.
#[utoipa::path(post, path = "/api/events/redeliver", operation_id = "redeliver_events", tag = "events", request_body = RedeliverIn,
    params(("Idempotency-Key" = Option<String>, Header, format = Uuid, description = "a UUID")),
    responses((status = 200, body = EventsOut), Problems))]
pub(crate) async fn redeliver_matching(
    State(app): State<Arc<App>>,
    _: Operator,
    IdempotencyKey(key): IdempotencyKey,
    Body(body): Body<RedeliverIn>,
) -> Answer<Json<EventsOut>> {
    again(&app, &Redelivery::Matching(body.filter()?), key).await
}

/// One step of removing old events.
#[utoipa::path(post, path = "/api/events/clean-up", operation_id = "clean_up_events", tag = "events", request_body = CleanUpIn,
    responses((status = 200, body = Cleaned), Problems))]
pub(crate) async fn clean_up(
    State(app): State<Arc<App>>,
    _: Operator,
    Body(body): Body<CleanUpIn>,
) -> Answer<Json<Cleaned>> {
    let what = CleanUp {
        after: Duration::from_millis(age(body.older_than_ms)?),
        dead_letters: body.dead_letters,
    };
    let size = batch(body.batch)?;
    let trigger = match &body.trigger {
        Some(name) => Some(app.db.trigger(name).await?),
        None => None,
    };
    let trigger = trigger.as_ref();
    let cleaned = match body.logs {
        true => app.db.clean_up_attempts(trigger, what.after, size).await?,
        false => app.db.clean_up_events(trigger, what, size).await?,
    };
    Ok(Json(cleaned))
}
