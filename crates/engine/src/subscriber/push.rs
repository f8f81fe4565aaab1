//! Pushing page after page, and what becomes of each.

use std::time::Instant;

use changefeed_core::{
    Advance, After, Backoff, Cursor, Error, Incarnation, Kind, OnRefusal, Remedy, Result,
    crash_point,
};
use tokio_util::sync::CancellationToken;

use super::outcome::{Counted, Pending, Pushed, Ready};
use super::{Ended, Filter, LOOK_AGAIN, Standing, Subscriber};
use crate::describe;
use crate::sinks::destination::{self, Appended, Held, Message};

/// What a page is read with.
pub(super) struct Reading {
    pub(super) filter: Filter,
    pub(super) incarnation: Option<Incarnation>,
}

impl Subscriber {
    /// Pushes page after page. While one is pushed, the next one is read, and the position of the one before is stored: the
    /// sink knows better anyway, and what cannot be asked gets messages at least once.
    pub(super) async fn push(
        &self,
        mut standing: Standing,
        reading: &mut Reading,
        backoff: &mut Backoff,
        shutdown: &CancellationToken,
    ) -> Result<Pushed> {
        let mut listener = self.store.listen(&self.feed, self.lane.shard);
        let mut after = standing.cursor.map_or(After::First, After::Cursor);
        let mut ready: Option<Ready> = None;
        loop {
            if shutdown.is_cancelled() {
                self.flush(&mut standing).await?;
                return Ok(Pushed::Ended(Ended::Shutdown));
            }
            let mut page = match ready.take() {
                Some(page) => page,
                None => {
                    listener.look();
                    match self.read(after, standing.epoch, reading).await? {
                        Ok(page) => page,
                        Err(reason) => return self.unreadable(&mut standing, &reason).await,
                    }
                }
            };
            if page.count == 0 {
                self.note(standing.generation, None).await;
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = listener.news() => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
                continue;
            }
            let every = self.definition.every;
            if !page.more && !every.is_zero() && page.count < self.limit() {
                // Collects for a while. What came meanwhile is read with the rest.
                tokio::select! {
                    () = shutdown.cancelled() => continue,
                    () = tokio::time::sleep(every) => {}
                }
                page = match self.read(after, standing.epoch, reading).await? {
                    Ok(page) => page,
                    Err(reason) => return self.unreadable(&mut standing, &reason).await,
                };
            }
            after = After::Cursor(page.next);
            match self.page(&mut standing, page, reading).await? {
                Ok(next) => ready = next,
                Err(pushed) => {
                    self.flush(&mut standing).await?;
                    return Ok(pushed);
                }
            }
            backoff.worked();
        }
    }

    fn limit(&self) -> usize {
        let most = self.sinks.main.most().max(1);
        self.definition.batch.min(most)
    }

    /// A page, dressed for the sink. A text says why a person has to do something first.
    async fn read(
        &self,
        after: After,
        epoch: u32,
        reading: &mut Reading,
    ) -> Result<Result<Ready, String>> {
        let (feed, shard) = (&self.feed, self.lane.shard);
        let page = match self.store.read(feed, shard, after, self.limit()).await {
            Ok(page) => page,
            Err(error) => return unreadable(error).map(Err),
        };
        if let Err(error) = page.incarnation.check(reading.incarnation) {
            return unreadable(error).map(Err);
        }
        reading.incarnation = Some(page.incarnation);
        let count = page.changes.len();
        let shown = match reading.filter.shown(page.changes) {
            Ok(shown) => shown,
            Err(error) => {
                return Ok(Err(format!(
                    "{error}. Define the subscription with another condition or other columns \
                     (`changefeed subscription create --replace`), then `resume` it"
                )));
            }
        };
        let there = self.place(epoch);
        let dressed = shown
            .iter()
            .map(|change| self.dress.message(&there, change));
        Ok(Ok(Ready {
            messages: dressed.collect::<Result<_>>()?,
            count,
            next: page.next,
            more: page.more,
        }))
    }

    /// Stops the shard.
    async fn unreadable(&self, standing: &mut Standing, reason: &str) -> Result<Pushed> {
        self.flush(standing).await?;
        self.stop(standing.generation, reason).await?;
        Ok(Pushed::Ended(Ended::Stopped))
    }

    /// Pushes one page. Returns the next one if there is more, or what keeps it from being pushed.
    async fn page(
        &self,
        standing: &mut Standing,
        page: Ready,
        reading: &mut Reading,
    ) -> Result<Result<Option<Ready>, Pushed>> {
        let there = self.place(standing.epoch);
        let (held, epoch) = (standing.held, standing.epoch);
        let append = async {
            match page.messages.is_empty() {
                // All of it is left out.
                true => Appended::All(held),
                false => self.append(&there, held, &page.messages).await,
            }
        };
        // An error is found again when the page is read again.
        let next = async {
            match page.more {
                true => self
                    .read(After::Cursor(page.next), epoch, reading)
                    .await
                    .ok()?
                    .ok(),
                false => None,
            }
        };
        let (appended, next, stored) = tokio::join!(append, next, self.flush(standing));
        stored?;
        match appended {
            Appended::All(held) => {
                standing.held = held;
                standing.pending = Some(Pending {
                    to: page.next,
                    held,
                    counted: Counted::sent(page.messages.len()),
                });
            }
            other => {
                if let Some(pushed) = self.settle(standing, &there, &page.messages, other).await? {
                    return Ok(Err(pushed));
                }
                // What was left out behind the last message.
                self.step(standing, page.next, Counted::default()).await?;
            }
        }
        if next.is_none() {
            self.flush(standing).await?;
        }
        self.note(standing.generation, None).await;
        Ok(Ok(next))
    }

    async fn append(&self, there: &destination::Lane, held: Held, batch: &[Message]) -> Appended {
        crash_point("push.before");
        let began = Instant::now();
        let appended = self.sinks.main.append(there, held, batch).await;
        crash_point("push.after");
        if let Appended::All(_) = &appended {
            let name = self.lane.name.as_str();
            self.meters.pushed(name, batch.len(), began.elapsed());
        }
        appended
    }

    /// Deals with a batch that was not simply taken, however many refusals are in it. Nothing if all messages are dealt with.
    async fn settle(
        &self,
        standing: &mut Standing,
        there: &destination::Lane,
        messages: &[Message],
        mut appended: Appended,
    ) -> Result<Option<Pushed>> {
        let mut rest = messages;
        loop {
            match appended {
                Appended::All(held) => {
                    standing.held = held;
                    if let Some(last) = rest.last() {
                        let counted = Counted::sent(rest.len());
                        self.step(standing, last.cursor, counted).await?;
                    }
                    return Ok(None);
                }
                Appended::Conflict => {
                    let why = "another instance has written to it".to_owned();
                    return Ok(Some(Pushed::AskSink(why)));
                }
                Appended::Unavailable(why) => return Ok(Some(Pushed::AskSink(why))),
                Appended::Refused {
                    index,
                    held,
                    reason,
                } => {
                    let Some((taken, [message, behind @ ..])) = rest.split_at_checked(index) else {
                        return Err(Error::defect(
                            "a sink refused a message that it did not get",
                        ));
                    };
                    self.meters.push_refused(self.lane.name.as_str());
                    standing.held = held;
                    if let Some(last) = taken.last() {
                        self.step(standing, last.cursor, Counted::sent(taken.len()))
                            .await?;
                    }
                    if let Some(pushed) = self.refused(standing, there, message, reason).await? {
                        return Ok(Some(pushed));
                    }
                    rest = behind;
                    if rest.is_empty() {
                        return Ok(None);
                    }
                }
            }
            appended = self.append(there, standing.held, rest).await;
        }
    }

    /// Stores the position of the page before, if that was not done yet.
    async fn flush(&self, standing: &mut Standing) -> Result<()> {
        let Some(pending) = standing.pending.take() else {
            return Ok(());
        };
        let now = std::mem::replace(&mut standing.held, pending.held);
        let stored = self.step(standing, pending.to, pending.counted).await;
        standing.held = now;
        stored
    }

    /// Does with a refused message what the definition says. Nothing if the shard goes on.
    async fn refused(
        &self,
        standing: &mut Standing,
        there: &destination::Lane,
        message: &Message,
        reason: String,
    ) -> Result<Option<Pushed>> {
        let (name, shard, cursor) = (&self.lane.name, self.lane.shard, message.cursor);
        match (&self.definition.on_refusal, &self.sinks.refused) {
            (OnRefusal::Park, _) => {
                tracing::warn!(subscription = %name, %shard, %cursor, reason, "a change is parked");
                let counted = Counted {
                    parked: Some(reason),
                    ..Counted::default()
                };
                self.step(standing, cursor, counted).await?;
                Ok(None)
            }
            (OnRefusal::DeadLetter(_), Some(sink)) => {
                let mut message = message.clone();
                message
                    .headers
                    .push(("changefeed-refused".to_owned(), reason));
                let held = match sink.resume(there).await {
                    Ok(held) => held,
                    Err(why) => return Ok(Some(Pushed::AskSink(why))),
                };
                // A message that is there already came before a crash.
                let there_already = matches!(held, Held::Upto(mark) if mark.cursor >= cursor);
                if !there_already {
                    match sink.append(there, held, &[message]).await {
                        Appended::All(_) => {}
                        other => {
                            let why = format!("the sink for refused messages: {other:?}");
                            return Ok(Some(Pushed::AskSink(why)));
                        }
                    }
                }
                self.step(standing, cursor, Counted::default()).await?;
                Ok(None)
            }
            _ => {
                let reason = format!(
                    "the sink refused change {cursor}: {reason}. `changefeed subscription resume` tries again, \
                     `seek` goes on behind it"
                );
                self.stop(standing.generation, &reason).await?;
                Ok(Some(Pushed::Ended(Ended::Stopped)))
            }
        }
    }

    /// Stores the position, repeating while the database is away.
    pub(super) async fn step(
        &self,
        standing: &mut Standing,
        to: Cursor,
        counted: Counted,
    ) -> Result<()> {
        if standing.cursor == Some(to) {
            return Ok(());
        }
        let advance = Advance {
            generation: standing.generation,
            epoch: standing.epoch,
            from: standing.cursor,
            to,
            held: match standing.held {
                Held::Upto(mark) => Some(mark.cursor),
                Held::Nothing | Held::CannotTell => None,
            },
            sent: counted.sent,
            lost: counted.lost,
            parked: counted.parked,
        };
        let mut backoff = Backoff::default();
        loop {
            match self.store.advance_lane(&self.lane, &advance).await {
                Ok(()) => break,
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(error = %describe(&error), "a position could not be stored; trying again");
                    tokio::time::sleep(backoff.failed()).await;
                }
                Err(error) => return Err(error),
            }
        }
        crash_point("push.stored");
        standing.cursor = Some(to);
        Ok(())
    }

    /// Notes in the database that the sink takes nothing, and why; or that it does again.
    pub(super) async fn note(&self, generation: i64, failure: Option<&str>) {
        if self.failing.is_news(failure.is_some())
            && let Err(error) = self.store.note_lane(&self.lane, generation, failure).await
        {
            tracing::debug!(%error, "it could not be noted whether the sink works");
        }
    }

    pub(super) async fn stop(&self, generation: i64, reason: &str) -> Result<()> {
        let (name, shard) = (&self.lane.name, self.lane.shard);
        tracing::error!(subscription = %name, %shard, reason, "a shard of a subscription is stopped");
        self.store
            .stop_lane(&self.lane, Some(generation), reason)
            .await
    }
}

/// The reason to stop, if a person has to do something about what cannot be read.
fn unreadable(error: Error) -> Result<String> {
    match error.kind() {
        Kind::CursorExpired | Kind::CursorAhead | Kind::Recovered => Ok(format!(
            "{error}. `changefeed subscription replay` sends again what is kept, `reset` goes on from now"
        )),
        _ => Err(error),
    }
}
