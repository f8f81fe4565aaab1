//! Subscriptions: their positions, and the loop that pushes to a sink.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    Advance, After, Cursor, DEFAULT_START, Feed, Kind, Lane, OnRefusal, ShardId, Sink, Store,
    SubscriptionDefinition,
};
use changefeed_engine::sinks::destination::{self, Appended, Destination, Held, Mark, Message};
use changefeed_engine::sinks::{Files, PushOptions, PushTo, destination as open, place_of};
use changefeed_engine::{CancellationToken, Changefeed, Leases, Sinks, Subscriber};
use changefeed_receiver::{Receiver, Reply};

use crate::backend::{Backend, eventually_true};

pub(super) fn at(n: i64) -> Cursor {
    Cursor::Number(DEFAULT_START + n)
}

pub(super) fn definition(feed: &Feed) -> SubscriptionDefinition {
    let sink = Sink::File("/nowhere/{shard}".to_owned());
    let mut definition =
        SubscriptionDefinition::new("out".parse().unwrap(), feed.name.clone(), sink);
    definition.batch = 7;
    definition
}

pub(super) fn lane(feed: &Feed) -> Lane {
    Lane {
        name: "out".parse().unwrap(),
        feed: feed.id,
        shard: ShardId(0),
    }
}

fn advance(generation: i64, from: Option<i64>, to: i64) -> Advance {
    Advance {
        generation,
        epoch: 0,
        from: from.map(at),
        to: at(to),
        held: Some(at(to)),
        sent: 1,
        lost: 0,
        parked: None,
    }
}

/// A definition survives being stored, is created once, and can be changed.
pub async fn a_subscription_is_created_once_and_keeps_its_place(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let mut new = definition(&feed);
    new.on_refusal = OnRefusal::Park;
    new.max_backlog = Some(9);
    let starts = [(ShardId(1), at(0))];
    store
        .create_subscription(&new, &feed, &starts, false)
        .await
        .unwrap();
    let again = store.create_subscription(&new, &feed, &starts, false).await;
    assert_eq!(again.unwrap_err().kind(), Kind::AlreadyExists);
    let known = store.subscriptions().await.unwrap().remove(0);
    assert_eq!(known.definition, new);
    assert_eq!(known.feed_id, feed.id);
    let places: Vec<_> = known.shards.iter().map(|s| (s.shard, s.cursor)).collect();
    assert_eq!(places, [(ShardId(0), None), (ShardId(1), Some(at(0)))]);

    store
        .pause_subscription(&new.name, Some("a rest"))
        .await
        .unwrap();
    store
        .stop_lane(&lane(&feed), Some(0), "too large")
        .await
        .unwrap();
    new.batch = 8;
    store
        .create_subscription(&new, &feed, &[], true)
        .await
        .unwrap();
    let known = store.subscriptions().await.unwrap().remove(0);
    assert_eq!(
        (known.definition.batch, known.paused.as_deref()),
        (8, Some("a rest"))
    );
    assert_eq!(known.shards[0].stopped.as_deref(), Some("too large"));
    assert_eq!(known.shards[1].cursor, Some(at(0)));
    store.pause_subscription(&new.name, None).await.unwrap();
    let known = store.subscriptions().await.unwrap().remove(0);
    assert_eq!(
        (known.paused, known.shards[0].stopped.clone()),
        (None, None)
    );

    // Its consumer is not somebody else's.
    store.drop_subscription(&new.name).await.unwrap();
    assert!(store.subscriptions().await.unwrap().is_empty());
    assert!(store.consumers().await.unwrap().is_empty());
    let gone = store.drop_subscription(&new.name).await.unwrap_err();
    assert_eq!(gone.kind(), Kind::NotFound);
    let from = store.store_cursor(&new.name, &feed, ShardId(0), None, at(0));
    from.await.unwrap();
    let taken = store.create_subscription(&new, &feed, &[], false).await;
    assert_eq!(taken.unwrap_err().kind(), Kind::AlreadyExists);
    assert!(store.subscriptions().await.unwrap().is_empty());
}

/// An older generation, an older epoch and a wrong place move nothing; a repeat counts once.
pub async fn promise_13_a_late_writer_moves_no_position(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let new = definition(&feed);
    store
        .create_subscription(&new, &feed, &[], false)
        .await
        .unwrap();
    let lane = lane(&feed);
    store.hold_lane(&lane, 3).await.unwrap();
    store
        .advance_lane(&lane, &advance(3, None, 5))
        .await
        .unwrap();
    // The answer was lost.
    store
        .advance_lane(&lane, &advance(3, None, 5))
        .await
        .unwrap();
    let state = store.hold_lane(&lane, 4).await.unwrap();
    assert_eq!(
        (state.cursor, state.held, state.sent),
        (Some(at(5)), Some(at(5)), 1)
    );
    let moved = |result: changefeed_core::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), Kind::Moved);
    };
    moved(store.advance_lane(&lane, &advance(3, Some(5), 6)).await);
    moved(store.advance_lane(&lane, &advance(4, Some(4), 6)).await);
    moved(store.stop_lane(&lane, Some(3), "late").await);
    let older = store.hold_lane(&lane, 3).await.unwrap_err();
    assert_eq!(older.kind(), Kind::Moved);
    // A sink that lost changes moves it back, under the generation.
    let mut back = advance(4, Some(5), 2);
    (back.sent, back.lost) = (0, 3);
    store.advance_lane(&lane, &back).await.unwrap();
    let mut parked = advance(4, Some(2), 3);
    (parked.sent, parked.parked) = (0, Some("too large".to_owned()));
    store.advance_lane(&lane, &parked).await.unwrap();
    let state = store.hold_lane(&lane, 4).await.unwrap();
    assert_eq!((state.sent, state.lost, state.parked), (1, 3, 1));
    let shown = store.parked_changes(&new.name, 10).await.unwrap();
    assert_eq!(
        (shown[0].cursor, shown[0].reason.as_str()),
        (at(3), "too large")
    );

    // A person has it begin elsewhere; who worked on the epoch before is late.
    assert_eq!(store.restart_lane(&lane, Some(at(1))).await.unwrap(), 1);
    moved(store.advance_lane(&lane, &advance(4, Some(1), 9)).await);
    let state = store.hold_lane(&lane, 4).await.unwrap();
    assert_eq!(
        (state.cursor, state.held, state.epoch),
        (Some(at(1)), None, 1)
    );
    assert_eq!(store.restart_lane(&lane, None).await.unwrap(), 2);
    assert_eq!(store.hold_lane(&lane, 4).await.unwrap().cursor, None);
    // Without a generation the position is given up.
    store.restart_lane(&lane, Some(at(1))).await.unwrap();
    store
        .stop_lane(&lane, None, "too far behind")
        .await
        .unwrap();
    assert!(store.consumers().await.unwrap().is_empty());
    // Dropping the feed takes it along.
    store.drop_feed(&feed).await.unwrap();
    assert!(store.subscriptions().await.unwrap().is_empty());
    let gone = store.hold_lane(&lane, 5).await.unwrap_err();
    assert!(
        matches!(gone.kind(), Kind::NotFound | Kind::Moved),
        "{gone}"
    );
}

/// A subscriber that runs until it is dropped or stopped.
struct Pushing {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<changefeed_core::Result<()>>,
}

impl Pushing {
    async fn start(store: &Arc<dyn Store>, feed: &Feed, sink: Arc<dyn Destination>) -> Pushing {
        let known = store.subscriptions().await.unwrap().remove(0);
        let sinks = Sinks {
            main: sink,
            refused: None,
        };
        let subscriber = Subscriber::new(
            store.clone(),
            known.definition,
            feed.clone(),
            ShardId(0),
            Leases::start(store.clone(), "me"),
            sinks,
        );
        let stop = CancellationToken::new();
        let task = tokio::spawn(subscriber.run(stop.clone()));
        Pushing { stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn file(dir: &Path) -> Arc<dyn Destination> {
    let path = dir.join("{feed}-{shard}");
    let (wait, allowed) = (Duration::from_secs(5), [dir.to_owned()]);
    Arc::new(Files::new(path.to_str().unwrap(), wait, &allowed).unwrap())
}

fn places(path: &Path) -> Vec<(u32, i64)> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // Half a line may be at its end.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            let (epoch, cursor) = place_of(line.as_bytes()).unwrap();
            (epoch, cursor.number().unwrap() - DEFAULT_START)
        })
        .collect()
}

async fn holds(path: &Path, expected: &[(u32, i64)]) {
    eventually_true("the file holds the changes", async || {
        places(path) == expected
    })
    .await;
}

fn epoch(epoch: u32, numbers: std::ops::RangeInclusive<i64>) -> Vec<(u32, i64)> {
    numbers.map(|n| (epoch, n)).collect()
}

/// The file gets everything in order, what it lost again, and a replay behind that; an emptied one stops the shard.
pub async fn promise_13_what_the_sink_says_wins(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    let db = Changefeed::new(store.clone());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("{}-0", feed.name));
    db.create_subscription(&definition(&feed), false)
        .await
        .unwrap();
    session.run(&words.publish_range(37, 0, 1, 30)).await;
    backend.settle(&*store).await;
    let pushing = Pushing::start(&store, &feed, file(dir.path())).await;
    holds(&path, &epoch(0, 1..=30)).await;
    session.run(&words.publish_range(37, 0, 100, 3)).await;
    backend.settle(&*store).await;
    holds(&path, &epoch(0, 1..=33)).await;
    pushing.end().await;

    // It loses its last lines, and half of one: those are sent again, and counted.
    let text = std::fs::read_to_string(&path).unwrap();
    let left: String = text
        .lines()
        .take(20)
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&path, left + "{\"cursor\":").unwrap();
    let pushing = Pushing::start(&store, &feed, file(dir.path())).await;
    holds(&path, &epoch(0, 1..=33)).await;
    eventually_true("the position is stored", async || {
        let view = db.subscription(&definition(&feed).name).await.unwrap();
        view.shards[0].cursor == Some(at(33))
    })
    .await;
    pushing.end().await;
    let view = db.subscription(&definition(&feed).name).await.unwrap();
    assert_eq!((view.shards[0].lost, view.shards[0].sent), (13, 46));

    // Emptied: a person decides.
    std::fs::write(&path, "").unwrap();
    let pushing = Pushing::start(&store, &feed, file(dir.path())).await;
    pushing.task.await.unwrap().unwrap();
    let view = db.subscription(&view.definition.name).await.unwrap();
    assert_eq!(view.state, "stopped");
    assert!(
        view.shards[0]
            .stopped
            .as_ref()
            .unwrap()
            .contains("the sink is empty")
    );
    let view = db.reset_subscription(&view.definition.name).await.unwrap();
    assert_eq!((view.shards[0].epoch, view.state), (1, "waiting"));
    let pushing = Pushing::start(&store, &feed, file(dir.path())).await;
    session.run(&words.publish_range(37, 0, 200, 2)).await;
    backend.settle(&*store).await;
    holds(&path, &epoch(1, 34..=35)).await;

    // A replay while it runs: everything again, behind what is there.
    db.seek_subscription(&view.definition.name, None, After::First)
        .await
        .unwrap();
    session.run(&words.publish_range(37, 0, 300, 1)).await;
    backend.settle(&*store).await;
    // What was pushed by the epoch before in the meantime comes before it.
    eventually_true("the replay is there", async || {
        let (old, new): (Vec<_>, Vec<_>) = places(&path).into_iter().partition(|(e, _)| *e < 2);
        (old == epoch(1, 34..=35) || old == epoch(1, 34..=36)) && new == epoch(2, 1..=36)
    })
    .await;
    pushing.end().await;
}

/// A sink that refuses some changes for good and forgets nothing.
#[derive(Debug, Default)]
struct Choosy {
    refuses: Vec<Cursor>,
    holds: Mutex<Vec<Cursor>>,
}

#[async_trait]
impl Destination for Choosy {
    async fn resume(&self, _: &destination::Lane) -> Result<Held, String> {
        Ok(self.held())
    }

    async fn append(&self, _: &destination::Lane, after: Held, batch: &[Message]) -> Appended {
        if after != self.held() {
            return Appended::Conflict;
        }
        for (index, message) in batch.iter().enumerate() {
            if self.refuses.contains(&message.cursor) {
                let (held, reason) = (self.held(), "too large".to_owned());
                return Appended::Refused {
                    index,
                    held,
                    reason,
                };
            }
            self.holds.lock().unwrap().push(message.cursor);
        }
        Appended::All(self.held())
    }
}

impl Choosy {
    fn held(&self) -> Held {
        let holds = self.holds.lock().unwrap();
        holds.last().map_or(Held::Nothing, |cursor| {
            let token = holds.len() as u64;
            Held::Upto(Mark {
                cursor: *cursor,
                token,
            })
        })
    }

    fn numbers(&self) -> Vec<i64> {
        let holds = self.holds.lock().unwrap();
        holds
            .iter()
            .map(|c| c.number().unwrap() - DEFAULT_START)
            .collect()
    }
}

/// What the sink will never take stops the shard, or is parked; nothing behind it overtakes.
pub async fn a_refused_change_stops_its_shard_or_is_parked(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let db = Changefeed::new(store.clone());
    let mut new = definition(&feed);
    db.create_subscription(&new, false).await.unwrap();
    backend
        .session()
        .await
        .run(&backend.words().publish_range(37, 0, 1, 20))
        .await;
    backend.settle(&*store).await;
    let sink = Arc::new(Choosy {
        refuses: vec![at(4), at(5), at(20)],
        ..Choosy::default()
    });
    for _ in 0..2 {
        let pushing = Pushing::start(&store, &feed, sink.clone()).await;
        pushing.task.await.unwrap().unwrap();
        assert_eq!(sink.numbers(), [1, 2, 3]);
        let view = db.subscription(&new.name).await.unwrap();
        assert_eq!(
            (view.state, view.shards[0].cursor),
            ("stopped", Some(at(3)))
        );
        assert!(
            view.shards[0]
                .stopped
                .as_ref()
                .unwrap()
                .contains("too large")
        );
        store.pause_subscription(&new.name, None).await.unwrap();
    }
    new.on_refusal = OnRefusal::Park;
    db.create_subscription(&new, true).await.unwrap();
    let all: Vec<i64> = (1..=19).filter(|n| ![4, 5].contains(n)).collect();
    for _ in 0..2 {
        let pushing = Pushing::start(&store, &feed, sink.clone()).await;
        eventually_true("everything else is there", async || {
            let view = db.subscription(&new.name).await.unwrap();
            view.shards[0].cursor == Some(at(20))
        })
        .await;
        pushing.end().await;
        assert_eq!(sink.numbers(), all);
        let view = db.subscription(&new.name).await.unwrap();
        // Parked changes are not taken for lost ones at the next start.
        assert_eq!((view.shards[0].parked, view.shards[0].lost), (3, 0));
    }
}

/// A webhook that fails, hangs up and refuses gets every change at least once, in order, but for the refused one.
pub async fn promise_13_a_webhook_gets_every_change_in_order(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let db = Changefeed::new(store.clone());
    let receiver = Receiver::start().await.unwrap();
    let seen = AtomicU64::new(0);
    let refused = at(17).to_string();
    receiver.rule(move |request| {
        let bad = String::from_utf8_lossy(&request.body).contains(&refused);
        Some(match seen.fetch_add(1, Ordering::Relaxed) % 5 {
            1 => Reply::DropAfterReading,
            2 => Reply::Status(503),
            _ if bad => Reply::Status(413),
            _ => Reply::Accept,
        })
    });
    let mut new = definition(&feed);
    new.sink = Sink::webhook(receiver.url("/orders"));
    new.on_refusal = OnRefusal::Park;
    db.create_subscription(&new, false).await.unwrap();
    let publish = backend.words().publish_range(37, 0, 1, 40);
    backend.session().await.run(&publish).await;
    backend.settle(&*store).await;
    let sink = open(&new.sink, &new, &PushOptions::default())
        .await
        .unwrap();
    let pushing = Pushing::start(&store, &feed, sink).await;
    eventually_true("everything is pushed", async || {
        let view = db.subscription(&new.name).await.unwrap();
        view.shards[0].cursor == Some(at(40))
    })
    .await;
    pushing.end().await;
    let mut arrived = Vec::new();
    for request in receiver.requests() {
        let messages: Vec<serde_json::Value> = serde_json::from_slice(&request.body).unwrap();
        let last = messages.last().unwrap()["cursor"].as_str().unwrap();
        let key = format!("out/0/0/{last}");
        assert_eq!(request.header("idempotency-key"), Some(key.as_str()));
        if request.reply == Reply::Accept {
            arrived.extend(
                messages
                    .iter()
                    .map(|m| m["cursor"].as_str().unwrap().to_owned()),
            );
        }
    }
    let mut known = std::collections::HashSet::new();
    arrived.retain(|cursor| known.insert(cursor.clone()));
    let expected = (1..=40).filter(|n| *n != 17).map(|n| at(n).to_string());
    assert_eq!(arrived, expected.collect::<Vec<_>>());
    let view = db.subscription(&new.name).await.unwrap();
    assert_eq!((view.shards[0].parked, view.shards[0].sent), (1, 39));
}

/// A function of the program gets every shard; what it fails with comes again.
pub async fn a_closure_gets_every_shard_in_order(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let session = backend.session().await;
    for shard in [0, 1] {
        let first = 100 * i64::from(shard);
        let publish = backend.words().publish_range(37, shard, first, 5);
        session.run(&publish).await;
    }
    backend.settle(&*store).await;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let failed = Arc::new(AtomicU64::new(0));
    let sink = PushTo::new(move |lane: destination::Lane, messages: Vec<Message>| {
        let (sender, failed) = (sender.clone(), failed.clone());
        Box::pin(async move {
            if failed.fetch_add(1, Ordering::Relaxed) < 3 {
                return Err("not yet".to_owned());
            }
            for message in messages {
                let _ = sender.send((lane.shard, message.cursor));
            }
            Ok(())
        })
    });
    let db = Changefeed::new(store.clone());
    let feed = db.feed(feed.name.as_str()).await.unwrap();
    let stop = CancellationToken::new();
    let (name, sink) = ("in-process".parse().unwrap(), Arc::new(sink));
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { feed.subscribe(name, sink, stop).await }
    });
    let mut got = Vec::new();
    while got.len() < 10 {
        let next = tokio::time::timeout(Duration::from_secs(30), receiver.recv());
        got.push(next.await.unwrap().unwrap());
    }
    stop.cancel();
    task.await.unwrap().unwrap();
    for shard in [0, 1] {
        let numbers = got.iter().filter(|(of, _)| of.0 == shard);
        let numbers: Vec<Cursor> = numbers.map(|(_, cursor)| *cursor).collect();
        assert_eq!(numbers, (1..=5).map(at).collect::<Vec<_>>());
    }
    let view = db.subscriptions().await.unwrap().remove(0);
    assert_eq!(
        (view.lag_changes, view.definition.sink),
        (0, Sink::InProcess)
    );
}
