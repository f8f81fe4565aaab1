//! Feeds.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use changefeed_core::view::FeedDetail;
use changefeed_core::{
    Backfill, DEFAULT_START, Feed, FeedId, FeedName, NewFeed, Retention, Source, Step, SweepGroup,
    Trimmed,
};

use super::created;
use crate::access::{Administrator, Operator, Rights};
use crate::app::App;
use crate::extract::{Body, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::wire::feeds::{BatchIn, FeedChangeIn, FeedList, NewFeedIn, ReshardIn, TrimIn};

/// All feeds that the caller may read.
#[utoipa::path(get, path = "/api/feeds", operation_id = "list_feeds", tag = "feeds",
    responses((status = 200, body = FeedList), Problems))]
pub(crate) async fn list(State(app): State<Arc<App>>, rights: Rights) -> Answer<Json<FeedList>> {
    let feeds = app.feeds.all().await?;
    let feeds = feeds
        .iter()
        .filter(|feed| rights.need_feed(&feed.name).is_ok())
        .map(|feed| Feed::clone(feed))
        .collect();
    Ok(Json(FeedList { feeds }))
}

/// Create a feed.
#[utoipa::path(post, path = "/api/feeds", operation_id = "create_feed", tag = "feeds", request_body = NewFeedIn,
    responses((status = 201, body = Feed), Problems))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    _: Administrator,
    Body(new): Body<NewFeedIn>,
) -> Answer<Response> {
    let start = match &new.start {
        None => DEFAULT_START,
        Some(text) => text
            .parse()
            .map_err(|_| Problem::invalid(format!("'{text}' is not a number to start at")))?,
    };
    let feed = NewFeed {
        name: new.name.parse()?,
        id: new.id.map(FeedId),
        comment: new.comment,
        shards: new.shards,
        sweep_group: SweepGroup(new.sweep_group),
        start,
        source: new.source,
        retention: new.retention,
    };
    if feed.source == Some(Source::Events) {
        return Err(
            Problem::invalid("feeds of events are made by event triggers")
                .advise("create a trigger with 'feed'"),
        );
    }
    feed.validate()?;
    let made = app.db.create_feed(&feed).await?;
    app.feeds.forget();
    Ok(created(made.definition().clone()))
}

/// One feed, the traffic of its shards, and its consumers.
#[utoipa::path(get, path = "/api/feeds/{feed}", operation_id = "get_feed", tag = "feeds",
    params(("feed" = String, Path)),
    responses((status = 200, body = FeedDetail), Problems))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    rights: Rights,
    Segments(name): Segments<String>,
) -> Answer<Json<FeedDetail>> {
    may_read(&rights, &name)?;
    let feed = app.feeds.feed(&name).await?;
    let states = app.db.store().shard_states(&feed).await?;
    let consumers = app.db.consumers().await?;
    Ok(Json(FeedDetail::new(&feed, states, consumers)))
}

/// Refuses callers that may not read the feed, before it is known whether it exists.
pub(crate) fn may_read(rights: &Rights, name: &str) -> Answer<()> {
    match name.parse::<FeedName>() {
        Ok(feed) => rights.need_feed(&feed),
        // No feed has such a name, which everybody may know.
        Err(_) => Ok(()),
    }
}

/// Change what can be changed of a feed: its comment, its sweep group, its images and how long it keeps changes.
#[utoipa::path(patch, path = "/api/feeds/{feed}", operation_id = "change_feed", tag = "feeds",
    params(("feed" = String, Path)), request_body = FeedChangeIn,
    responses((status = 200, body = Feed), Problems))]
pub(crate) async fn change(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
    Body(change): Body<FeedChangeIn>,
) -> Answer<Json<Feed>> {
    let mut feed = app.db.feed(&name).await?.definition().clone();
    if let Some(comment) = change.comment {
        feed.comment = Some(comment).filter(|text| !text.is_empty());
    }
    if let Some(group) = change.sweep_group {
        for shard in &mut feed.shards {
            shard.sweep_group = SweepGroup(group);
        }
    }
    if let Some(keep) = change.images {
        feed.keep_images(keep)?;
    }
    if let Some(retention) = change.retention {
        feed.keep_changes(retention)?;
    }
    app.db.store().apply(&[Step::ChangeFeed(feed)]).await?;
    app.feeds.forget();
    let feed = app.db.feed(&name).await?;
    Ok(Json(feed.definition().clone()))
}

/// Remove a feed with everything in it.
#[utoipa::path(delete, path = "/api/feeds/{feed}", operation_id = "delete_feed", tag = "feeds",
    params(("feed" = String, Path)),
    responses((status = 204), Problems))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
) -> Answer<StatusCode> {
    app.db.feed(&name).await?.drop_feed().await?;
    app.feeds.forget();
    Ok(StatusCode::NO_CONTENT)
}

/// Go on with another number of shards: those that there are get closed.
#[utoipa::path(post, path = "/api/feeds/{feed}/reshard", operation_id = "reshard_feed", tag = "feeds",
    params(("feed" = String, Path)), request_body = ReshardIn,
    responses((status = 200, body = Feed), Problems))]
pub(crate) async fn reshard(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
    Body(body): Body<ReshardIn>,
) -> Answer<Json<Feed>> {
    let feed = app.db.feed(&name).await?;
    let feed = feed.reshard(body.shards).await?;
    app.feeds.forget();
    Ok(Json(feed.definition().clone()))
}

/// One step of giving numbers to rows that are older than the feed.
#[utoipa::path(post, path = "/api/feeds/{feed}/backfill", operation_id = "backfill_feed", tag = "feeds",
    params(("feed" = String, Path)), request_body = BatchIn,
    responses((status = 200, body = Backfill), Problems))]
pub(crate) async fn backfill(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<BatchIn>,
) -> Answer<Json<Backfill>> {
    let feed = app.db.feed(&name).await?;
    Ok(Json(feed.backfill(batch(body.batch)?).await?))
}

/// Checks the size of a step.
pub(crate) fn batch(size: usize) -> Answer<usize> {
    match size {
        1..=10_000 => Ok(size),
        _ => Err(Problem::invalid(format!(
            "a batch of {size} is not possible: use 1 to 10000"
        ))),
    }
}

/// One step of removing old changes that every consumer has read, or that nobody shall hold back any longer.
#[utoipa::path(post, path = "/api/feeds/{feed}/trim", operation_id = "trim_feed", tag = "feeds",
    params(("feed" = String, Path)), request_body = TrimIn,
    responses((status = 200, body = Trimmed), Problems))]
pub(crate) async fn trim(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<TrimIn>,
) -> Answer<Json<Trimmed>> {
    let feed = app.db.feed(&name).await?;
    let span = |ms| age(ms).map(Duration::from_millis);
    let retention = Retention {
        trim_after: span(body.older_than_ms)?,
        trim_unread_after: body.unread_older_than_ms.map(span).transpose()?,
    };
    Ok(Json(feed.trim(retention, batch(body.batch)?).await?))
}

/// Checks an age: a hundred years are enough, and more would not fit a database's interval.
pub(crate) fn age(ms: u64) -> Answer<u64> {
    match ms {
        0..=3_155_760_000_000 => Ok(ms),
        _ => Err(Problem::invalid(format!(
            "{ms} ms are more than a hundred years"
        ))),
    }
}
