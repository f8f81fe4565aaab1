//! The open feed protocols: ZeroEventHub (v1) and FeedAPI (v2), at the same address. A request with
//! `n` is one of version 1; one without any parameter asks for the partitions of version 2.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use changefeed_core::{After, Feed, MAX_PAGE, PAGE_BYTES, ShardId};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::changes::poll;
use super::feeds::may_read;
use crate::access::Rights;
use crate::app::App;
use crate::complaints::Failure;
use crate::extract::Segments;
use crate::kept::Failed;
use crate::limits::{AtWork, LONGEST_WAIT};
use crate::pages::Encoded;
use crate::problem::Problem;

const DEFAULT_PAGE: usize = 1000;
/// The bytes of the changes in an answer of version 1, and how much room must be left for another page.
const ROOM: usize = PAGE_BYTES as usize;
const WORTH_READING: usize = ROOM / 8;

/// What these protocols answer when something is wrong: plain text.
pub(crate) struct Refused {
    status: StatusCode,
    text: String,
    failure: Option<Failure>,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text).into_response();
        if let Some(failure) = self.failure {
            response.extensions_mut().insert(failure);
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, 1.into());
        }
        response
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        // In FeedAPI 409 says that the partitions have changed: its clients would ask for them and come
        // back with the same cursor, for ever. A cursor that is ahead stays wrong.
        let status = match problem.status() {
            StatusCode::CONFLICT => StatusCode::BAD_REQUEST,
            status => status,
        };
        Refused {
            status,
            text: problem.detail().to_owned(),
            failure: problem.failure().cloned(),
        }
    }
}

impl From<Failed> for Refused {
    fn from(error: Failed) -> Self {
        Problem::from(error).into()
    }
}

fn bad(text: impl Into<String>) -> Refused {
    refused(StatusCode::BAD_REQUEST, text)
}

fn refused(status: StatusCode, text: impl Into<String>) -> Refused {
    Refused {
        status,
        text: text.into(),
        failure: None,
    }
}

/// The parameters of a request, each of which may be there once.
struct Query(BTreeMap<String, String>);

impl Query {
    fn of(uri: &Uri) -> Result<Self, Refused> {
        let axum::extract::Query(pairs) =
            axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
                .map_err(|_| bad("the parameters cannot be read"))?;
        let mut all = BTreeMap::new();
        for (name, value) in pairs {
            if value.contains('\0') {
                return Err(bad("texts cannot hold the character U+0000"));
            }
            if all.insert(name.clone(), value).is_some() {
                return Err(bad(format!("the parameter '{name}' is there twice")));
            }
        }
        Ok(Query(all))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Refused> {
        self.get(name)
            .map(|text| {
                text.parse()
                    .map_err(|_| bad(format!("'{text}' is not a number that '{name}' can be")))
            })
            .transpose()
    }

    /// The page that is hinted at. A hint is not a promise, so one that is too large is cut.
    fn page(&self) -> Result<usize, Refused> {
        match self.number::<usize>("pagesizehint")? {
            None | Some(0) => Ok(DEFAULT_PAGE),
            Some(size) => Ok(size.min(MAX_PAGE)),
        }
    }

    fn wait(&self) -> Result<Duration, Refused> {
        let wait = Duration::from_millis(self.number("wait")?.unwrap_or(0));
        Ok(wait.min(LONGEST_WAIT))
    }
}

fn point(cursor: &str) -> Result<After, Refused> {
    match cursor {
        "_first" => Ok(After::First),
        "_last" => Ok(After::Last),
        other => match other.parse() {
            Ok(cursor) => Ok(After::Cursor(cursor)),
            Err(_) => Err(bad(format!("'{other}' is not a cursor"))),
        },
    }
}

/// Where to go on, in the words of these protocols.
fn written(after: After) -> String {
    match after {
        After::First => "_first".to_owned(),
        After::Last => "_last".to_owned(),
        other => other.to_string(),
    }
}

/// Version 1, or the partitions of version 2.
pub(crate) async fn root(
    State(app): State<Arc<App>>,
    rights: Rights,
    at_work: AtWork,
    Segments(name): Segments<String>,
    uri: Uri,
) -> Result<Response, Refused> {
    may_read(&rights, &name)?;
    let query = Query::of(&uri)?;
    let feed = app.feeds.feed(&name).await?;
    if query.0.is_empty() {
        return Ok(Json(Discovery::of(&feed)).into_response());
    }
    version_1(&app, &at_work, &feed, &query).await
}

async fn version_1(
    app: &Arc<App>,
    at_work: &AtWork,
    feed: &Arc<Feed>,
    query: &Query,
) -> Result<Response, Refused> {
    let Some(n) = query.number::<usize>("n")? else {
        return Err(bad("handshake error: partition count missing"));
    };
    if n != feed.shards.len() {
        return Err(bad("handshake error: partition count mismatch"));
    }
    let mut wanted = Vec::new();
    for (name, cursor) in &query.0 {
        let Some(partition) = name.strip_prefix("cursor") else {
            continue;
        };
        let partition: usize = partition
            .parse()
            .map_err(|_| bad(format!("'{name}' does not name a partition")))?;
        let shard = feed
            .shards
            .get(partition)
            .ok_or_else(|| bad("partition doesn't exist"))?;
        wanted.push((partition, shard.shard, point(cursor)?));
    }
    if wanted.is_empty() {
        return Err(bad("cursors are missing"));
    }
    // The hint is for all partitions together.
    let limit = (query.page()? / wanted.len()).max(1);
    // Pages are bounded by bytes, and so are all of them together: those that find no room stay where they
    // are. Each answer begins with another partition, so that every one has its turn.
    let begin = fastrand::usize(..wanted.len());
    wanted.rotate_left(begin);
    let (mut pages, mut room) = (Vec::new(), ROOM);
    for (partition, shard, after) in &wanted {
        let mut page = Arc::new(Encoded::nothing(*after));
        // A reader that begins at the end gets its cursor.
        if room > WORTH_READING || *after == After::Last {
            let read = app.reads.read(feed, *shard, *after, limit).await;
            let read = read.map_err(Problem::from)?;
            if read.bytes() <= room || room == ROOM {
                page = read;
            }
        }
        room = room.saturating_sub(page.bytes());
        pages.push((*partition, page));
    }
    let wait = query.wait()?;
    let open = pages.iter().any(|(_, page)| !page.is_closed());
    if !wait.is_zero() && open && pages.iter().all(|(_, page)| page.is_empty()) {
        // One client is one seat, however many shards it waits for. Whichever has something first ends the
        // waiting of all.
        let _seat = at_work.wait(app)?;
        let waiting = wanted
            .iter()
            .zip(&pages)
            .filter(|(_, (_, page))| !page.is_closed())
            .map(|((partition, shard, _), (_, page))| {
                let (partition, next) = (*partition, page.next());
                Box::pin(async move {
                    let page = poll(app, None, feed, *shard, next.into(), limit, wait).await?;
                    Ok::<_, Problem>((partition, page))
                })
            });
        let (first, _, _) = futures_util::future::select_all(waiting).await;
        let (partition, page) = first?;
        if let Some(place) = pages.iter_mut().find(|(p, _)| *p == partition) {
            place.1 = page;
        }
    }
    pages.sort_by_key(|(partition, _)| *partition);
    let mut text = String::new();
    for (partition, page) in &pages {
        for (_, change) in page.changes() {
            let _ = writeln!(text, "{{\"partition\":{partition},\"data\":{change}}}");
        }
        let cursor = written(page.next());
        let _ = writeln!(
            text,
            "{{\"partition\":{partition},\"cursor\":\"{cursor}\"}}"
        );
    }
    Ok(lines(text))
}

fn lines(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], text).into_response()
}

/// The partitions of version 2.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Discovery {
    token: String,
    partitions: Vec<Partition>,
    exactly_once: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Partition {
    id: String,
    closed: bool,
    /// The protocol has room for one. Whether there are others is told by their being closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_after_partition: Option<String>,
}

impl Discovery {
    fn of(feed: &Feed) -> Self {
        Discovery {
            token: token(feed),
            partitions: feed
                .shards
                .iter()
                .map(|s| Partition {
                    id: s.shard.to_string(),
                    closed: s.closed,
                    starts_after_partition: feed.parents(s.shard).last().map(ToString::to_string),
                })
                .collect(),
            exactly_once: true,
        }
    }
}

/// Identifies the set of shards: a reader of another set has to start again.
fn token(feed: &Feed) -> String {
    let mut shards = format!("{}", feed.id);
    for shard in &feed.shards {
        let _ = write!(shards, ",{}", shard.shard);
    }
    let hash = Sha256::digest(shards.as_bytes());
    hash.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The events of version 2.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    rights: Rights,
    at_work: AtWork,
    Segments(name): Segments<String>,
    uri: Uri,
) -> Result<Response, Refused> {
    may_read(&rights, &name)?;
    let query = Query::of(&uri)?;
    let feed = app.feeds.feed(&name).await?;
    match query.get("token") {
        None => return Err(bad("the parameter 'token' is missing")),
        Some(given) if given != token(&feed) => {
            return Err(refused(
                StatusCode::CONFLICT,
                "the token is not that of the present partitions: ask for them again",
            ));
        }
        Some(_) => {}
    }
    if query.get("event-types").is_some() && query.get("skip-event-types").is_some() {
        return Err(bad(
            "'event-types' and 'skip-event-types' exclude each other",
        ));
    }
    let shard: ShardId = query
        .get("partition")
        .ok_or_else(|| bad("the parameter 'partition' is missing"))?
        .parse()
        .map_err(|_| bad("partition doesn't exist"))?;
    if feed.shard(shard).is_err() {
        return Err(bad("partition doesn't exist"));
    }
    let cursor = query.get("cursor");
    let after = point(cursor.ok_or_else(|| bad("the parameter 'cursor' is missing"))?)?;
    let (limit, wait) = (query.page()?, query.wait()?);
    let page: Arc<Encoded> = poll(
        &app,
        Some(&at_work),
        &feed,
        shard,
        after.into(),
        limit,
        wait,
    )
    .await?;
    let mut text = String::new();
    for (_, change) in page.changes() {
        let _ = writeln!(text, "{{\"data\":{change}}}");
    }
    let _ = writeln!(text, "{{\"cursor\":\"{}\"}}", written(page.next()));
    Ok(lines(text))
}
