//! Named consumers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use changefeed_core::{After, ConsumerName, Cursor, Error, ShardId};

use crate::access::{Operator, Reader};
use crate::app::App;
use crate::extract::{Body, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::wire::feeds::{ConsumerList, CursorIn};

/// All consumers and how far behind they are.
#[utoipa::path(get, path = "/api/consumers", operation_id = "list_consumers", tag = "feeds",
    responses((status = 200, body = ConsumerList), Problems))]
pub(crate) async fn list(State(app): State<Arc<App>>, _: Reader) -> Answer<Json<ConsumerList>> {
    let consumers = app.db.consumers().await?;
    Ok(Json(ConsumerList { consumers }))
}

/// Store where a consumer stands: from the cursor that it stored before to the next one, or wherever
/// it stands with `seek`. Safe to repeat.
#[utoipa::path(put, path = "/api/feeds/{feed}/consumers/{consumer}/shards/{shard}", operation_id = "store_cursor", tag = "feeds",
    params(("feed" = String, Path), ("consumer" = String, Path), ("shard" = i16, Path)),
    request_body = CursorIn,
    responses((status = 204), Problems))]
pub(crate) async fn set(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments((feed, consumer, shard)): Segments<(String, String, String)>,
    Body(body): Body<CursorIn>,
) -> Answer<StatusCode> {
    let (name, shard): (ConsumerName, ShardId) = (consumer.parse()?, shard.parse()?);
    let cursor: Cursor = body.cursor.parse()?;
    let from: Option<Cursor> = body.from.as_deref().map(str::parse).transpose()?;
    if body.seek && from.is_some() {
        return Err(Problem::invalid("'from' and 'seek' exclude each other")
            .advise("a consumer sends 'from'; 'seek' moves it wherever it stands"));
    }
    let feed = app.db.feed(&feed).await?;
    feed.definition().shard(shard)?;
    // Refuses a cursor that no reader of this feed could have.
    feed.read(shard, After::Cursor(cursor), 1).await?;
    if body.seek {
        feed.seek(&name, shard, cursor).await?;
    } else {
        feed.store_cursor(&name, shard, from, cursor).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a consumer, so that it no longer holds back trimming.
#[utoipa::path(delete, path = "/api/feeds/{feed}/consumers/{consumer}", operation_id = "delete_consumer", tag = "feeds",
    params(("feed" = String, Path), ("consumer" = String, Path)),
    responses((status = 204), Problems))]
pub(crate) async fn forget(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments((feed, consumer)): Segments<(String, String)>,
) -> Answer<StatusCode> {
    let name: ConsumerName = consumer.parse()?;
    let feed = app.db.feed(&feed).await?;
    match feed.drop_consumer(&name).await? {
        0 => Err(
            Error::not_found(format!("feed '{}' has no consumer '{name}'", feed.name()))
                .advise("GET /api/consumers shows the consumers")
                .into(),
        ),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
