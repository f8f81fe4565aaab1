//! Changes as server-sent events: one shard, or all shards of a feed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use changefeed_core::{After, Cursor, Feed, Incarnation, Kind, ShardId};
use changefeed_engine::Follower;
use futures_util::StreamExt;
use futures_util::stream::{self, SelectAll, Stream};
use tokio::time::Instant;

use crate::access::Rights;
use crate::app::App;
use crate::limits::Seat;
use crate::pages::Encoded;
use crate::problem::{Answer, Problem};
use crate::reads::SharedPages;

/// Changes that are read at a time.
const PAGE: usize = 500;

/// What there is to tell about a shard.
enum News {
    /// There is something.
    Page(Arc<Encoded>),
    /// Nothing will ever come any more: the feed goes on in other shards.
    Closed,
    /// It cannot go on.
    End(Problem),
}

/// A shard that is followed, and its first page.
struct Followed {
    follower: Follower<SharedPages>,
    /// Where it really begins: `last` means from now on, not from each look.
    begin: After,
    /// The life of the database.
    incarnation: Option<Incarnation>,
    first: Option<Arc<Encoded>>,
}

impl Followed {
    /// Reads the first page, so that an impossible request gets a status and not a
    /// stream.
    async fn begin(
        app: &Arc<App>,
        feed: &Arc<Feed>,
        shard: ShardId,
        after: After,
        incarnation: Option<Incarnation>,
    ) -> Answer<Followed> {
        let pages = SharedPages {
            app: app.clone(),
            feed: feed.clone(),
            shard,
            limit: PAGE,
        };
        let mut follower = Follower::new(pages, after).expecting(incarnation);
        let (page, next) = follower.look().await?;
        Ok(Followed {
            begin: if next.changes { after } else { next.after },
            incarnation: next.incarnation,
            first: next.changes.then_some(page),
            follower,
        })
    }

    async fn next(&mut self) -> News {
        if let Some(first) = self.first.take() {
            return News::Page(first);
        }
        match self.follower.next().await {
            Ok(Some(page)) => News::Page(page),
            Ok(None) => News::Closed,
            Err(error) => {
                let problem = Problem::from(error);
                if let Some(failure) = problem.failure() {
                    self.follower.pages().app.complaints.failed(failure);
                }
                News::End(problem)
            }
        }
    }

    fn into_stream(self) -> impl Stream<Item = (ShardId, News)> + Send {
        stream::unfold(Some(self), |followed| async move {
            let mut followed = followed?;
            let shard = followed.follower.pages().shard;
            let news = followed.next().await;
            let over = !matches!(news, News::Page(_));
            Some(((shard, news), (!over).then_some(followed)))
        })
    }
}

/// One shard, for ever.
pub(crate) async fn shard(
    app: &Arc<App>,
    rights: Rights,
    seat: Seat,
    feed: &Arc<Feed>,
    shard: ShardId,
    after: After,
    incarnation: Option<Incarnation>,
) -> Answer<Response> {
    let followed = Followed::begin(app, feed, shard, after, incarnation).await?;
    let incarnation = followed.incarnation;
    let begin = Told::Text(match followed.begin {
        After::Cursor(cursor) => format!("id: {cursor}\n\n").into(),
        _ => Bytes::from_static(b": begin\n\n"),
    });
    let news = followed.into_stream().map(|(_, news)| match news {
        News::Page(page) => Told::Text(page.events()),
        News::Closed => Told::Last(closed()),
        News::End(problem) => Told::Last(ending(&problem)),
    });
    let begin = stream::once(std::future::ready(begin));
    let response = answer(app, rights, seat, feed, begin.chain(news));
    Ok(tell(response, incarnation))
}

/// Says in which life of the database this is.
pub(crate) fn tell(mut response: Response, incarnation: Option<Incarnation>) -> Response {
    let value = incarnation.and_then(|i| HeaderValue::try_from(i.to_string()).ok());
    if let Some(value) = value {
        response.headers_mut().insert(INCARNATION, value);
    }
    response
}

/// The header that says in which life of the database a page was read, and in which a cursor was given.
pub(crate) const INCARNATION: HeaderName = HeaderName::from_static("changefeed-incarnation");

/// All shards of a feed, for ever.
pub(crate) async fn feed(
    app: &Arc<App>,
    rights: Rights,
    seat: Seat,
    feed: &Arc<Feed>,
    places: &Places,
    incarnation: Option<Incarnation>,
) -> Answer<Response> {
    // Known from the beginning, so that a shard without changes is not forgotten by who resumes.
    let mut at = Places::default();
    let mut generations = Vec::new();
    let mut expected = incarnation;
    for shards in feed.generations() {
        let mut all = SelectAll::new();
        for shard in shards {
            let followed = Followed::begin(app, feed, shard, places.of(shard), expected).await?;
            expected = followed.incarnation;
            at.begin(shard, followed.begin);
            all.push(Box::pin(followed.into_stream()));
        }
        generations.push(all);
    }
    let begin = Told::Text(format!("id: {at}\n\n").into());
    // Those of a later generation when all before were read to their ends. When all are closed, the number of
    // shards was changed meanwhile: a client that connects again is given the new ones.
    let news = stream::iter(generations).flatten();
    let news = news.filter_map(move |(shard, news)| {
        std::future::ready(match news {
            News::Page(page) => Some(Told::Text(at.page(shard, &page))),
            News::Closed => None,
            News::End(problem) => Some(Told::Last(ending(&problem))),
        })
    });
    let over = stream::once(std::future::ready(Told::Last(closed())));
    let news = news.chain(over);
    let begin = stream::once(std::future::ready(begin));
    let response = answer(app, rights, seat, feed, begin.chain(news));
    Ok(tell(response, expected))
}

/// Nothing will come any more in this stream.
fn closed() -> Bytes {
    Bytes::from_static(b"event: closed\ndata: {}\n\n")
}

fn ending(problem: &Problem) -> Bytes {
    format!("event: error\ndata: {}\n\n", problem.json()).into()
}

enum Told {
    Text(Bytes),
    Last(Bytes),
}

/// Where a reader stands in each shard: `0=2000000000000003,1=first`.
#[derive(Debug, Default, Clone)]
pub(crate) struct Places {
    cursors: BTreeMap<ShardId, After>,
    otherwise: Option<After>,
}

impl Places {
    /// Every shard from the same point.
    pub(crate) fn everywhere(after: After) -> Self {
        Places {
            cursors: BTreeMap::new(),
            otherwise: Some(after),
        }
    }

    /// Reads what `Display` wrote.
    pub(crate) fn parse(text: &str) -> Answer<Self> {
        let mut cursors = BTreeMap::new();
        for part in text.split(',') {
            let (shard, after) = part.split_once('=').ok_or_else(|| {
                Problem::invalid(format!("'{text}' is not the id of an event of this stream"))
            })?;
            cursors.insert(shard.trim().parse()?, after.trim().parse()?);
        }
        Ok(Places {
            cursors,
            // A shard that was added since has not been read yet.
            otherwise: Some(After::First),
        })
    }

    fn of(&self, shard: ShardId) -> After {
        let known = self.cursors.get(&shard).copied();
        known.or(self.otherwise).unwrap_or(After::Last)
    }

    fn begin(&mut self, shard: ShardId, after: After) {
        self.cursors.insert(shard, after);
    }

    /// The events of a page, each with the places after it.
    fn page(&mut self, shard: ShardId, page: &Encoded) -> Bytes {
        let mut text = String::new();
        for (cursor, change) in page.changes() {
            self.moved(shard, cursor);
            let rest = change.strip_prefix('{').unwrap_or(change);
            let _ = write!(text, "id: {self}\ndata: {{\"shard\":{shard},{rest}\n\n");
        }
        text.into()
    }

    fn moved(&mut self, shard: ShardId, cursor: Cursor) {
        self.cursors.insert(shard, After::Cursor(cursor));
    }
}

impl std::fmt::Display for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (shard, after)) in self.cursors.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            write!(f, "{comma}{shard}={after}")?;
        }
        Ok(())
    }
}

/// An answer that stays open: what there is to tell, and a sign of life when there is nothing, until
/// the server stops, the caller's rights are taken back or the feed is dropped.
fn answer(
    app: &Arc<App>,
    rights: Rights,
    seat: Seat,
    feed: &Arc<Feed>,
    news: impl Stream<Item = Told> + Send + 'static,
) -> Response {
    struct Open<S> {
        app: Arc<App>,
        rights: Rights,
        feed: Arc<Feed>,
        news: S,
        alive_at: Instant,
        over: bool,
        _seat: Seat,
    }
    let every = app.options.keep_alive;
    let open = Open {
        app: app.clone(),
        rights,
        feed: feed.clone(),
        news: Box::pin(news),
        alive_at: Instant::now() + every,
        over: false,
        _seat: seat,
    };
    let body = stream::unfold(open, move |mut open| async move {
        if open.over {
            return None;
        }
        let shutdown = open.app.shutdown.clone();
        let text = tokio::select! {
            biased;
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep_until(open.alive_at) => {
                open.alive_at = Instant::now() + every;
                if !open.app.access.still_holds(&open.rights).await {
                    return None;
                }
                match open.app.feeds.feed(open.feed.name.as_str()).await {
                    Err(error) if error.kind() == Kind::NotFound => {
                        open.over = true;
                        ending(&error.into())
                    }
                    _ => Bytes::from_static(b": keep-alive\n\n"),
                }
            }
            told = open.news.next() => match told? {
                Told::Text(text) => text,
                Told::Last(text) => {
                    open.over = true;
                    text
                }
            },
        };
        Some((Ok::<_, std::convert::Infallible>(text), open))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    // nginx would otherwise keep events until it has enough of them.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        let text = "-1=first,0=2000000000000003,7=12";
        assert_eq!(Places::parse(text).unwrap().to_string(), text);
        for bad in ["", "0", "x=1", "0=", "0=1,"] {
            assert!(Places::parse(bad).is_err(), "{bad}");
        }
    }
}
