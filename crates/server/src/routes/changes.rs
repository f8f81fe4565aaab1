//! Pages, long polls and streams of changes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use changefeed_core::{After, Feed, Incarnation, MAX_PAGE, Page, ShardId};
use changefeed_engine::Follower;

use super::feeds::may_read;
use crate::access::Rights;
use crate::app::App;
use crate::extract::{Params, Segments};
use crate::limits::{AtWork, LONGEST_WAIT};
use crate::pages::Encoded;
use crate::problem::{Answer, Problem, Problems};
use crate::reads::SharedPages;
use crate::stream::{self, Places};
use crate::wire::feeds::{ChangesQuery, PageOut};

/// Changes in a page unless somebody asks for another number.
const DEFAULT_LIMIT: usize = 100;

/// The changes of a shard: a page, or by `Accept: text/event-stream` a stream of events.
#[utoipa::path(get, path = "/api/feeds/{feed}/shards/{shard}/changes", operation_id = "read_shard", tag = "feeds",
    params(("feed" = String, Path), ("shard" = i16, Path), ChangesQuery),
    responses((status = 200, content((PageOut = "application/json"), (String = "application/x-ndjson"), (String = "text/event-stream"))), Problems))]
pub(crate) async fn shard(
    State(app): State<Arc<App>>,
    rights: Rights,
    at_work: AtWork,
    Segments((name, shard)): Segments<(String, String)>,
    Params(query): Params<ChangesQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    may_read(&rights, &name)?;
    let shard: ShardId = shard.parse()?;
    let feed = app.feeds.shard(&name, shard).await?;
    let limit = Page::check_limit(query.limit.unwrap_or(DEFAULT_LIMIT))?;
    let wait = Duration::from_millis(query.wait.unwrap_or(0));
    if wait > LONGEST_WAIT {
        return Err(Problem::invalid(format!(
            "a wait of {} ms is not possible: use 0 to {}",
            wait.as_millis(),
            LONGEST_WAIT.as_millis()
        )));
    }
    let after = query.after.as_deref().map(str::parse).transpose()?;
    let incarnation = expected(&headers, &query)?;
    match wanted(&headers) {
        Form::Events => {
            let resumed = last_event_id(&headers)?.map(|id| id.parse()).transpose()?;
            let after = resumed.or(after).unwrap_or(After::Last);
            let seat = at_work.wait(&app)?;
            stream::shard(&app, rights, seat, &feed, shard, after, incarnation).await
        }
        form => {
            let after = after.unwrap_or(After::First);
            let from = Start { after, incarnation };
            let page = poll(&app, Some(&at_work), &feed, shard, from, limit, wait).await?;
            let response = match form {
                Form::Lines => (
                    [(header::CONTENT_TYPE, "application/x-ndjson")],
                    page.ndjson(),
                )
                    .into_response(),
                _ => {
                    let body = page.json(feed.name.as_str(), shard.0);
                    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
                }
            };
            Ok(stream::tell(response, page.incarnation()))
        }
    }
}

/// All shards of a feed, as one stream of events.
#[utoipa::path(get, path = "/api/feeds/{feed}/changes", operation_id = "follow_feed", tag = "feeds",
    params(("feed" = String, Path), ("after" = Option<String>, Query, description = "`first` or `last`, which is the default")),
    responses((status = 200, content_type = "text/event-stream", body = String),
              (status = 406, content_type = "application/problem+json", body = Problem), Problems))]
pub(crate) async fn feed(
    State(app): State<Arc<App>>,
    rights: Rights,
    at_work: AtWork,
    Segments(name): Segments<String>,
    Params(query): Params<ChangesQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    may_read(&rights, &name)?;
    let feed = app.feeds.feed(&name).await?;
    if wanted(&headers) != Form::Events {
        return Err(Problem::new(
            StatusCode::NOT_ACCEPTABLE,
            "invalid",
            "all shards of a feed together can only be read as a stream of events",
        )
        .advise("send 'Accept: text/event-stream', or read the pages of each shard"));
    }
    let places = match (last_event_id(&headers)?, query.after.as_deref()) {
        (Some(id), _) => Places::parse(id)?,
        (None, None | Some("last")) => Places::everywhere(After::Last),
        (None, Some("first")) => Places::everywhere(After::First),
        (None, Some(places)) => Places::parse(places)?,
    };
    let seat = at_work.wait(&app)?;
    let incarnation = expected(&headers, &query)?;
    stream::feed(&app, rights, seat, &feed, &places, incarnation).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Lines,
    Events,
}

/// The form that the caller likes best.
fn wanted(headers: &HeaderMap) -> Form {
    let accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','));
    for kind in accepted {
        match kind.split(';').next().unwrap_or_default().trim() {
            "text/event-stream" => return Form::Events,
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" => {
                return Form::Lines;
            }
            "application/json" | "*/*" | "application/*" => return Form::Json,
            _ => {}
        }
    }
    Form::Json
}

/// The life of the database that the caller's cursor belongs to, if it says so.
fn expected(headers: &HeaderMap, query: &ChangesQuery) -> Answer<Option<Incarnation>> {
    let sent = headers.get(stream::INCARNATION);
    let sent = sent.map(|value| value.to_str().unwrap_or_default());
    let text = query.incarnation.as_deref().or(sent);
    Ok(text.map(str::parse).transpose()?)
}

/// Where a reader goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) after: After,
    /// The life of the database that this belongs to, if the reader says so.
    pub(crate) incarnation: Option<Incarnation>,
}

impl From<After> for Start {
    fn from(after: After) -> Self {
        Start {
            after,
            incarnation: None,
        }
    }
}

fn last_event_id(headers: &HeaderMap) -> Answer<Option<&str>> {
    headers
        .get("last-event-id")
        .map(|v| {
            v.to_str()
                .map_err(|_| Problem::invalid("Last-Event-ID is not a cursor"))
        })
        .transpose()
        .map(|id| id.filter(|id| !id.is_empty()))
}

/// The next page; waits for something to come if there is nothing yet. `at_work` is exchanged for a seat
/// then; without it the caller has a seat already.
pub(crate) async fn poll(
    app: &Arc<App>,
    at_work: Option<&AtWork>,
    feed: &Arc<Feed>,
    shard: ShardId,
    from: Start,
    limit: usize,
    wait: Duration,
) -> Answer<Arc<Encoded>> {
    debug_assert!(limit <= MAX_PAGE);
    if wait.is_zero() {
        let page = app.reads.read(feed, shard, from.after, limit).await?;
        if let Some(incarnation) = page.incarnation() {
            incarnation.check(from.incarnation)?;
        }
        return Ok(page);
    }
    let pages = SharedPages {
        app: app.clone(),
        feed: feed.clone(),
        shard,
        limit,
    };
    let mut seat = None;
    let mut follower = Follower::new(pages, from.after).expecting(from.incarnation);
    let page = follower.poll(wait, &app.shutdown, || {
        seat = at_work.map(|at_work| at_work.wait(app)).transpose()?;
        Ok::<_, Problem>(())
    });
    page.await
}
