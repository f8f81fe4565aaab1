//! How much at the same time, and for how long. Whoever comes when there is no room gets 503 and
//! `Retry-After`; nothing piles up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::App;
use crate::problem::{Answer, Problem};

/// The longest wait that a long poll may ask for.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Room for requests at work, and for those that wait.
pub(crate) struct Limits {
    working: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    most_working: usize,
    most_waiting: usize,
}

impl Limits {
    pub(crate) fn new(most_working: usize, most_waiting: usize) -> Self {
        Limits {
            working: Arc::new(Semaphore::new(most_working)),
            waiting: Arc::new(Semaphore::new(most_waiting)),
            most_working,
            most_waiting,
        }
    }

    /// Requests at work.
    pub(crate) fn working(&self) -> usize {
        self.most_working - self.working.available_permits()
    }

    /// Long polls and streams that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.most_waiting - self.waiting.available_permits()
    }
}

/// A place among those who wait; given back when it is dropped.
pub(crate) struct Seat {
    _permit: OwnedSemaphorePermit,
}

/// A place among those at work, which a handler exchanges for a seat when it begins to wait.
#[derive(Clone)]
pub(crate) struct AtWork(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl AtWork {
    /// From now on this request only waits.
    pub(crate) fn wait(&self, app: &App) -> Answer<Seat> {
        let permit = app
            .limits
            .waiting
            .clone()
            .try_acquire_owned()
            .map_err(|_| {
                Problem::overloaded(format!(
                    "{} clients wait already, and more are not possible",
                    app.limits.most_waiting
                ))
                .advise("ask again later, or start `changefeed serve --max-waiting N`")
            })?;
        self.done();
        Ok(Seat { _permit: permit })
    }

    /// Gives the place back.
    pub(crate) fn done(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl FromRequestParts<Arc<App>> for AtWork {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let place = parts.extensions.get::<AtWork>().cloned();
        Ok(place.unwrap_or_else(|| AtWork(Arc::default())))
    }
}

/// Lets a request in when there is room, and ends it when it takes too long.
pub(crate) async fn admit(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let patience = app.options.request_timeout;
    // A short queue smooths what comes all at once, as after a change that a thousand waited for.
    let queue = patience.min(Duration::from_secs(2));
    let permit = tokio::time::timeout(queue, app.limits.working.clone().acquire_owned()).await;
    let Ok(Ok(permit)) = permit else {
        return Problem::overloaded(format!(
            "{} requests are at work already, and more are not possible",
            app.limits.most_working
        ))
        .advise("ask again later, or start `changefeed serve --max-requests N`")
        .into_response();
    };
    let place = AtWork(Arc::new(Mutex::new(Some(permit))));
    request.extensions_mut().insert(place.clone());
    let waits = request.uri().query().is_some_and(|q| q.contains("wait="));
    let longest = if waits {
        patience + LONGEST_WAIT
    } else {
        patience
    };
    let answer = tokio::time::timeout(longest, next.run(request)).await;
    place.done();
    answer.unwrap_or_else(|_| {
        Problem::overloaded(format!(
            "this took longer than {}",
            humantime::format_duration(patience)
        ))
        .advise("ask for less at a time, or start `changefeed serve --request-timeout DURATION`")
        .into_response()
    })
}
