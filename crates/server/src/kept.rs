//! What the database said, kept for a moment. However many want to know at the same time, there is one
//! look at the database, and it goes on when those who asked have given up waiting: a database that hangs
//! is asked once, not once per request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{Error, Kind, Result};
use futures_util::future::{BoxFuture, FutureExt, Shared};

/// Why a look failed; shared by all who waited for it.
pub(crate) type Failed = Arc<Error>;

type Look<T> = Box<dyn Fn() -> BoxFuture<'static, Result<T>> + Send + Sync>;
type Running<T> = Shared<BoxFuture<'static, std::result::Result<T, Failed>>>;

/// Something that the database knows.
pub(crate) struct Kept<T> {
    look: Look<T>,
    state: Arc<Mutex<State<T>>>,
}

struct State<T> {
    /// The last answer, and when it was asked for; `None` if it was made obsolete.
    known: Option<(Option<Instant>, T)>,
    running: Option<(Instant, Running<T>)>,
    /// How often it was made obsolete: an answer from before that is not kept.
    changes: u64,
}

impl<T: Clone + Send + Sync + 'static> Kept<T> {
    /// Something that is looked up in this way.
    pub(crate) fn new(
        look: impl Fn() -> BoxFuture<'static, Result<T>> + Send + Sync + 'static,
        known: Option<T>,
    ) -> Self {
        let state = State {
            known: known.map(|value| (None, value)),
            running: None,
            changes: 0,
        };
        Kept {
            look: Box::new(look),
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has just been changed, so what is known does not count any more.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.changes += 1;
        state.running = None;
        if let Some((asked, _)) = &mut state.known {
            *asked = None;
        }
    }

    /// What was known last, however old it is.
    pub(crate) fn last(&self) -> Option<T> {
        self.state().known.as_ref().map(|(_, value)| value.clone())
    }

    /// Whether the look under way has taken longer than this.
    pub(crate) fn hangs(&self, limit: Duration) -> bool {
        let state = self.state();
        let running = state.running.as_ref();
        running.is_some_and(|(began, _)| began.elapsed() > limit)
    }

    /// As it was at most this long ago.
    pub(crate) async fn get(&self, fresh: Duration) -> std::result::Result<T, Failed> {
        let question = Instant::now();
        let new_enough = |asked: Instant| asked + fresh > question;
        loop {
            let (began, running) = {
                let mut state = self.state();
                if let Some((Some(asked), value)) = &state.known
                    && new_enough(*asked)
                {
                    return Ok(value.clone());
                }
                match &state.running {
                    Some(running) => running.clone(),
                    None => {
                        let running = (Instant::now(), self.start(&state));
                        state.running = Some(running.clone());
                        running
                    }
                }
            };
            let value = running.await?;
            if new_enough(began) || began >= question {
                return Ok(value);
            }
        }
    }

    fn start(&self, state: &State<T>) -> Running<T> {
        let (look, state, changes) = ((self.look)(), self.state.clone(), state.changes);
        let task = tokio::spawn(async move {
            let asked = Instant::now();
            let outcome = look.await;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.changes == changes {
                state.running = None;
                if let Ok(value) = &outcome {
                    state.known = Some((Some(asked), value.clone()));
                }
            }
            outcome.map_err(Arc::new)
        });
        async move {
            task.await.unwrap_or_else(|_| {
                Err(Arc::new(Error::new(
                    Kind::Unavailable,
                    "the query was cut off",
                )))
            })
        }
        .boxed()
        .shared()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Semaphore;

    const FRESH: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn one_look_is_for_all_and_survives_those_who_wait() {
        let (looks, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
        let (counted, opened) = (looks.clone(), gate.clone());
        let kept = Kept::new(
            move || {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                let gate = opened.clone();
                async move {
                    gate.acquire().await.unwrap().forget();
                    Ok(number)
                }
                .boxed()
            },
            Some(100),
        );
        let brief = Duration::from_millis(5);
        for _ in 0..3 {
            assert!(tokio::time::timeout(brief, kept.get(FRESH)).await.is_err());
        }
        assert!(kept.hangs(brief) && !kept.hangs(FRESH));
        assert_eq!((looks.load(Ordering::Relaxed), kept.last()), (1, Some(100)));
        gate.add_permits(1);
        assert_eq!(kept.get(FRESH).await.unwrap(), 0);
        assert_eq!(kept.get(FRESH).await.unwrap(), 0);
        kept.forget();
        assert_eq!(kept.last(), Some(0));
        gate.add_permits(1);
        assert_eq!(kept.get(FRESH).await.unwrap(), 1);
    }
}
