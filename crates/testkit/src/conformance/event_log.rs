//! Looking into the log, delivering again, cleaning up, and sending what was there before.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use changefeed_core::{
    CleanUp, Content, Cursor, EventFilter, EventStatus, EventTrigger, FeedBinding, Kind,
    LeasedEvent, LoggedEvent, OrderBy, Outcome, Redelivery, ShardId, Store, TriggerDefinition,
    Uuid, Verdict, seek_consumer,
};
use serde_json::{Value, json};

use crate::backend::{Backend, Session, name, read_all};
use crate::events::{
    LEASE, NO_LEASE, attempts, claim, everything, finish, finished, key, log, shown, told,
};

const ORDERS: &str = "create table orders (id integer primary key, customer text, total integer)";

const NOW: CleanUp = CleanUp {
    after: Duration::ZERO,
    dead_letters: false,
};

async fn scene(
    backend: &Arc<dyn Backend>,
    events: usize,
    change: impl FnOnce(&mut TriggerDefinition),
) -> (Arc<dyn Store>, Box<dyn Session>, EventTrigger) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let mut definition = everything("t", "orders");
    change(&mut definition);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    for id in 1..=events {
        session
            .run(&format!("insert into orders values ({id}, 'c', {id})"))
            .await;
    }
    (store, session, trigger)
}

/// The ids of rows in the events that a filter finds, as the log shows them: newest first.
async fn found(store: &dyn Store, filter: EventFilter) -> Vec<i64> {
    let events = store.events(&filter, 100).await.unwrap();
    events.iter().map(row_id).collect()
}

fn row_id(logged: &LoggedEvent) -> i64 {
    let row = crate::events::row(logged.event.new.as_deref());
    row["id"].as_i64().unwrap()
}

/// Finishes events with these verdicts, one after the other.
async fn settle(
    store: &dyn Store,
    trigger: &EventTrigger,
    verdicts: &[Verdict],
) -> Vec<LeasedEvent> {
    let limit = u32::try_from(verdicts.len()).unwrap();
    let held = claim(store, trigger, limit, "a", LEASE).await;
    for (event, verdict) in held.iter().zip(verdicts) {
        finish(store, event, *verdict).await;
    }
    held
}

/// Newest first, by trigger, state, time, answer, error and place.
pub async fn the_log_can_be_filtered(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, 5, |_| {}).await;
    store
        .create_trigger(&everything("other", "orders"), false)
        .await
        .unwrap();
    session.run("insert into orders values (6, 'c', 6)").await;
    let later = Verdict::Retry {
        after: Duration::from_secs(900),
    };
    let held = settle(
        &*store,
        &trigger,
        &[Verdict::Delivered, Verdict::GiveUp, later],
    )
    .await;
    let all = EventFilter::default;
    assert_eq!(found(&*store, all()).await, [6, 6, 5, 4, 3, 2, 1]);
    let of = |name: &str| EventFilter {
        trigger: Some(name.parse().unwrap()),
        ..EventFilter::default()
    };
    assert_eq!(found(&*store, of("other")).await, [6]);
    assert_eq!(found(&*store, of("t")).await, [6, 5, 4, 3, 2, 1]);
    let in_state = |status| EventFilter {
        status: Some(status),
        ..of("t")
    };
    for (status, expected) in [
        (EventStatus::Pending, vec![6, 5, 4, 3]),
        (EventStatus::Delivered, vec![1]),
        (EventStatus::DeadLetter, vec![2]),
        (EventStatus::Archived, vec![]),
    ] {
        assert_eq!(found(&*store, in_state(status)).await, expected);
    }
    let answered = |status| EventFilter {
        http_status: Some(status),
        ..all()
    };
    assert_eq!(found(&*store, answered(200)).await, [1]);
    assert_eq!(found(&*store, answered(503)).await, [3, 2]);
    assert!(found(&*store, answered(404)).await.is_empty());
    let failed = |error: &str| EventFilter {
        error: Some(error.to_owned()),
        ..all()
    };
    assert_eq!(found(&*store, failed("it ANSWERED")).await, [3, 2]);
    assert!(found(&*store, failed("%")).await.is_empty());
    let before = EventFilter {
        before: Some(held[1].event.change_id),
        ..all()
    };
    assert_eq!(found(&*store, before).await, [1]);
    let hour = Duration::from_secs(3600);
    for (since, until, count) in [
        (Some(SystemTime::now() - hour), None, 7),
        (Some(SystemTime::now() + hour), None, 0),
        (None, Some(SystemTime::now() + hour), 7),
        (None, Some(SystemTime::now() - hour), 0),
        (Some(SystemTime::UNIX_EPOCH), None, 7),
    ] {
        let filter = EventFilter {
            since,
            until,
            ..all()
        };
        assert_eq!(found(&*store, filter).await.len(), count);
    }
    let page = store.events(&all(), 2).await.unwrap();
    assert_eq!(page.iter().map(row_id).collect::<Vec<_>>(), [6, 6]);
}

/// The newest attempt that counted decides; one that came too late does not.
pub async fn a_late_attempt_is_not_what_a_filter_looks_at(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 1, |_| {}).await;
    let zombie = claim(&*store, &trigger, 1, "zombie", NO_LEASE).await;
    let owner = claim(&*store, &trigger, 1, "owner", LEASE).await;
    finish(&*store, &owner[0], Verdict::GiveUp).await;
    store
        .finish_events(&[finished(&zombie[0], Verdict::Delivered)])
        .await
        .unwrap();
    let answered = |status| EventFilter {
        http_status: Some(status),
        ..EventFilter::default()
    };
    assert_eq!(found(&*store, answered(503)).await, [1]);
    assert!(found(&*store, answered(200)).await.is_empty());
}

/// An id of another installation, or of nothing, is nothing here.
pub async fn an_unknown_event_is_not_there(backend: Arc<dyn Backend>) {
    let (store, _, _) = scene(&backend, 1, |_| {}).await;
    let id = log(&*store).await[0].event.id;
    let near = changefeed_core::EventId(Uuid::from_u128(id.0.as_u128() ^ 1));
    let far = changefeed_core::EventId(Uuid::from_u128(id.0.as_u128() + (1 << 80)));
    for unknown in [near, far] {
        assert!(store.event(unknown).await.unwrap().is_none());
        let error = store
            .redeliver(&Redelivery::Event(unknown), key())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error}");
        assert!(error.message().contains(&unknown.to_string()), "{error}");
    }
    assert!(store.event(id).await.unwrap().is_some());
}

/// SQL shows the same as the library, under the documented names.
pub async fn plain_sql_shows_the_log(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, 2, |_| {}).await;
    let held = settle(&*store, &trigger, &[Verdict::GiveUp]).await;
    let words = backend.words();
    let rows = session
        .query(&format!(
            "select id, change_id, trigger_name, table_name, op, delivered, error, tries, \
             archived, old, new from {} order by change_id",
            words.our("event_log")
        ))
        .await
        .unwrap();
    let is_true = |text: &Option<String>| matches!(text.as_deref(), Some("t" | "1"));
    let first = &rows[0];
    assert_eq!(
        first[0].as_deref(),
        Some(held[0].event.id.to_string().as_str())
    );
    assert_eq!(first[2].as_deref(), Some("t"));
    assert_eq!(first[3].as_deref(), Some("orders"));
    assert_eq!(first[4].as_deref(), Some("INSERT"));
    assert!(!is_true(&first[5]) && is_true(&first[6]) && !is_true(&first[8]));
    assert_eq!(first[7].as_deref(), Some("1"));
    assert_eq!(first[9], None);
    let new: Value = serde_json::from_str(first[10].as_deref().unwrap()).unwrap();
    assert_eq!(new["id"], 1);
    let attempts = session
        .query(&format!(
            "select event_id, trigger_name, status, outcome, attempt, request, response \
             from {}",
            words.our("event_invocation_logs")
        ))
        .await
        .unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0][0], first[0]);
    assert_eq!(attempts[0][2].as_deref(), Some("503"));
    assert_eq!(attempts[0][3].as_deref(), Some("failure"));
}

/// From the first attempt on, with the same id; the log of attempts goes on.
pub async fn promise_8_what_was_given_up_can_be_delivered_again(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 2, |_| {}).await;
    let held = settle(&*store, &trigger, &[Verdict::GiveUp, Verdict::Delivered]).await;
    for event in &held {
        let count = store
            .redeliver(&Redelivery::Event(event.event.id), key())
            .await
            .unwrap();
        assert_eq!(count, 1);
        let (logged, _) = shown(&*store, event.event.id).await;
        assert_eq!((logged.status, logged.tries), (EventStatus::Pending, 0));
    }
    let again = claim(&*store, &trigger, 10, "a", LEASE).await;
    assert_eq!(again.len(), 2);
    for (event, before) in again.iter().zip(&held) {
        assert_eq!(event.event.id, before.event.id);
        assert_eq!((event.attempt, event.cut_off), (1, 0));
        assert!(event.generation > before.generation);
        finish(&*store, event, Verdict::Delivered).await;
    }
    assert_eq!(
        attempts(&*store, held[0].event.id).await,
        ["1 failure 503", "1 success 200"]
    );
    // One that waits for its next attempt need not wait any longer.
    store
        .redeliver(&Redelivery::Event(held[0].event.id), key())
        .await
        .unwrap();
    let later = Verdict::Retry {
        after: Duration::from_secs(900),
    };
    settle(&*store, &trigger, &[later]).await;
    assert!(claim(&*store, &trigger, 1, "a", LEASE).await.is_empty());
    store
        .redeliver(&Redelivery::Event(held[0].event.id), key())
        .await
        .unwrap();
    assert_eq!(claim(&*store, &trigger, 1, "a", LEASE).await.len(), 1);
}

/// Somebody delivers it at this moment: busy, and nothing changes. After its lease it is free.
pub async fn an_event_that_is_held_cannot_be_delivered_again(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 2, |_| {}).await;
    let held = claim(&*store, &trigger, 1, "a", LEASE).await;
    let again = Redelivery::Event(held[0].event.id);
    let error = store.redeliver(&again, key()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    finish(&*store, &held[0], Verdict::Delivered).await;
    // One whose lease has run out: due anyway, and the attempt that was cut off is not forgotten.
    let lost = claim(&*store, &trigger, 1, "dead", NO_LEASE).await;
    store
        .redeliver(&Redelivery::Event(lost[0].event.id), key())
        .await
        .unwrap();
    let next = claim(&*store, &trigger, 1, "a", LEASE).await;
    assert_eq!(next[0].event.id, lost[0].event.id);
    finish(&*store, &next[0], Verdict::Delivered).await;
    let attempts = attempts(&*store, lost[0].event.id).await;
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert!(attempts[0].ends_with("unknown"), "{attempts:?}");
    assert!(attempts[1].ends_with("success 200"), "{attempts:?}");
}

/// By trigger, state, answer and error; what waits anyway, or is held, is left alone.
pub async fn events_are_delivered_again_by_filter(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, 6, |_| {}).await;
    let dropped = store
        .create_trigger(&everything("dropped", "orders"), false)
        .await
        .unwrap();
    session.run("insert into orders values (7, 'c', 7)").await;
    store.drop_trigger(&dropped).await.unwrap();
    let later = Verdict::Retry {
        after: Duration::from_secs(900),
    };
    let verdicts = [Verdict::GiveUp, Verdict::GiveUp, Verdict::Delivered, later];
    settle(&*store, &trigger, &verdicts).await;
    let held = claim(&*store, &trigger, 1, "a", LEASE).await;
    let matching = |filter: EventFilter| Redelivery::Matching(filter);
    let none = matching(EventFilter {
        http_status: Some(404),
        ..EventFilter::default()
    });
    assert_eq!(store.redeliver(&none, key()).await.unwrap(), 0);
    let dead = matching(EventFilter {
        trigger: Some("t".parse().unwrap()),
        status: Some(EventStatus::DeadLetter),
        error: Some("answered 503".into()),
        ..EventFilter::default()
    });
    assert_eq!(store.redeliver(&dead, key()).await.unwrap(), 2);
    assert_eq!(store.redeliver(&dead, key()).await.unwrap(), 0);
    let all = matching(EventFilter::default());
    assert_eq!(
        store.redeliver(&all, key()).await.unwrap(),
        1,
        "the delivered one; not the pending, held and archived ones"
    );
    let renewed = store.renew_events(&[held[0].claim()], LEASE).await.unwrap();
    assert_eq!(renewed.len(), 1, "still held");
    assert_eq!(claim(&*store, &trigger, 10, "a", LEASE).await.len(), 5);
    // A dropped trigger's events have nowhere to go.
    let archived = store
        .events(
            &EventFilter {
                status: Some(EventStatus::Archived),
                ..EventFilter::default()
            },
            10,
        )
        .await
        .unwrap();
    assert_eq!(archived.len(), 1);
    let error = store
        .redeliver(&Redelivery::Event(archived[0].event.id), key())
        .await
        .unwrap_err();
    assert!(error.message().contains("dropped"), "{error}");
}

/// Only what is finished and old enough; dead letters stay unless asked for.
pub async fn cleaning_up_keeps_what_it_should(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, 5, |_| {}).await;
    let other = store
        .create_trigger(&everything("other", "orders"), false)
        .await
        .unwrap();
    session.run("insert into orders values (6, 'c', 6)").await;
    settle(&*store, &other, &[Verdict::Delivered]).await;
    settle(
        &*store,
        &trigger,
        &[Verdict::Delivered, Verdict::Delivered, Verdict::GiveUp],
    )
    .await;
    let held = claim(&*store, &trigger, 1, "a", LEASE).await;
    let hour = CleanUp {
        after: Duration::from_secs(3600),
        dead_letters: true,
    };
    let cleaned = store.clean_up_events(None, hour, 100).await.unwrap();
    assert_eq!((cleaned.events, cleaned.attempts), (0, 0));
    let cleaned = store.clean_up_events(Some(&trigger), NOW, 1).await.unwrap();
    assert_eq!((cleaned.events, cleaned.attempts), (1, 1));
    assert!(cleaned.more, "in batches");
    let mut left = 0;
    loop {
        let cleaned = store.clean_up_events(Some(&trigger), NOW, 1).await.unwrap();
        left += cleaned.events;
        if !cleaned.more {
            break;
        }
    }
    assert_eq!(left, 1);
    assert_eq!(
        found(&*store, EventFilter::default()).await,
        [6, 6, 5, 4, 3],
        "the other trigger's, what is held or waits, and the dead letter"
    );
    let with_dead = CleanUp {
        dead_letters: true,
        ..NOW
    };
    let cleaned = store.clean_up_events(None, with_dead, 100).await.unwrap();
    assert_eq!(cleaned.events, 2);
    finish(&*store, &held[0], Verdict::Delivered).await;
    // Events of a dropped trigger go when all are cleaned.
    store.drop_trigger(&trigger).await.unwrap();
    store.clean_up_events(None, NOW, 100).await.unwrap();
    assert_eq!(found(&*store, EventFilter::default()).await.len(), 0);
    let attempts = session
        .number(&format!(
            "select count(*) from {}",
            backend.words().our("event_invocation_logs")
        ))
        .await;
    assert_eq!(attempts, 0, "no attempt without its event");
}

/// A consumer of the trigger's feed has the last word.
pub async fn what_a_consumer_has_not_read_is_not_cleaned(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 4, |d| {
        d.capture.feed = Some(FeedBinding {
            feed: name("events"),
            shard_by: None,
        });
    })
    .await;
    settle(&*store, &trigger, &[Verdict::Delivered; 4]).await;
    backend.settle(&*store).await;
    let feed = store.feeds().await.unwrap().remove(0);
    let changes = read_all(&*store, &feed, 0, 100).await;
    let consumer = "reader".parse().unwrap();
    let read_to = |cursor: Cursor| {
        let (store, feed, consumer) = (store.clone(), feed.clone(), &consumer);
        async move {
            seek_consumer(&*store, consumer, &feed, ShardId(0), cursor)
                .await
                .unwrap();
        }
    };
    read_to(changes[1].cursor).await;
    let cleaned = store.clean_up_events(None, NOW, 100).await.unwrap();
    assert_eq!(cleaned.events, 2);
    assert_eq!(found(&*store, EventFilter::default()).await, [4, 3]);
    let again = read_all(&*store, &feed, 0, 100).await;
    let gone: Vec<bool> = again
        .iter()
        .map(|c| matches!(c.content, Content::Gone))
        .collect();
    assert_eq!(gone, [true, true, false, false]);
    read_to(changes[3].cursor).await;
    let cleaned = store.clean_up_events(None, NOW, 100).await.unwrap();
    assert_eq!(cleaned.events, 2);
}

/// How the events of each trigger stand.
pub async fn the_state_of_a_trigger_is_counted(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 6, |_| {}).await;
    store
        .create_trigger(&everything("empty", "orders"), false)
        .await
        .unwrap();
    settle(&*store, &trigger, &[Verdict::Delivered, Verdict::GiveUp]).await;
    claim(&*store, &trigger, 1, "a", LEASE).await;
    claim(&*store, &trigger, 1, "dead", NO_LEASE).await;
    let states = store.trigger_states().await.unwrap();
    let numbers: Vec<(&str, i64, i64, i64)> = states
        .iter()
        .map(|s| (s.name.as_str(), s.pending, s.in_flight, s.dead_letters))
        .collect();
    assert_eq!(numbers, [("empty", 0, 0, 0), ("t", 4, 1, 1)]);
    assert!(states[0].overdue_ms.is_none());
    assert!(
        states[1]
            .overdue_ms
            .is_some_and(|ms| (0..60_000).contains(&ms))
    );
}

/// Existing rows become INSERT events, in batches, once, whoever goes on with it.
pub async fn a_backfill_of_a_trigger_goes_on_where_it_stopped(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    for id in 1..=25 {
        session
            .run(&format!("insert into orders values ({id}, null, {id})"))
            .await;
    }
    let mut definition = everything("t", "orders");
    definition.capture.order_by = Some(OrderBy::Key);
    definition.capture.feed = Some(FeedBinding {
        feed: name("events"),
        shard_by: None,
    });
    definition.capture.payload = Some(vec!["id".into(), "customer".into()]);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    let step = store.backfill_trigger(&trigger, 10).await.unwrap();
    assert_eq!((step.added, step.done, step.finished), (10, 10, false));
    // Live traffic does not disturb it, nor is it disturbed.
    session
        .run("insert into orders values (1000, null, 1)")
        .await;
    let other = backend.store().await;
    let mut steps = 0;
    loop {
        let step = other.backfill_trigger(&trigger, 10).await.unwrap();
        steps += 1;
        if step.finished {
            break;
        }
        assert!(steps < 10);
    }
    let step = store.backfill_trigger(&trigger, 10).await.unwrap();
    assert!(step.finished);
    assert_eq!(step.added, 0);
    let told = told(&*store).await;
    let mut ids: Vec<i64> = told
        .iter()
        .map(|(op, old, new)| {
            assert_eq!((*op, old), ("INSERT", &Value::Null));
            assert_eq!(new, &json!({"id": new["id"], "customer": null}));
            new["id"].as_i64().unwrap()
        })
        .filter(|id| *id <= 25)
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=25).collect::<Vec<_>>(), "each once");
    backend.settle(&*store).await;
    let feed = store.feeds().await.unwrap().remove(0);
    assert_eq!(read_all(&*store, &feed, 0, 100).await.len(), told.len());
    let held = claim(&*store, &trigger, 100, "a", LEASE).await;
    assert!(held.len() >= 26, "they are delivered like any other");
    assert!(store.backfill_trigger(&trigger, 0).await.is_err());
}

/// Two at the same time do it once.
pub async fn promise_12_two_backfills_of_a_trigger_do_it_once(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    session
        .run(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 200) \
             insert into orders select i, 'c', i from n",
        )
        .await;
    let trigger = store
        .create_trigger(&everything("t", "orders"), false)
        .await
        .unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (store, trigger) = (backend.store().await, trigger.clone());
        tasks.push(tokio::spawn(async move {
            while !store.backfill_trigger(&trigger, 7).await.unwrap().finished {}
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(log(&*store).await.len(), 200);
}

/// The condition counts for existing rows too, as for rows that are inserted.
pub async fn a_backfill_of_a_trigger_keeps_its_condition(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    session
        .run("insert into orders values (1, 'a', 1), (2, 'b', 20), (3, 'c', null)")
        .await;
    let mut definition = everything("t", "orders");
    definition.capture.condition = Some("new.total > 10 and old.total is null".into());
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    while !store.backfill_trigger(&trigger, 2).await.unwrap().finished {}
    let ids: Vec<i64> = log(&*store).await.iter().map(row_id).collect();
    assert_eq!(ids, [2]);
}

/// What an attempt may hold: anything a receiver can answer.
pub async fn an_attempt_can_hold_whatever_came_back(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 3, |_| {}).await;
    let held = claim(&*store, &trigger, 3, "a", LEASE).await;
    let deep = format!("{}1{}", "[".repeat(900), "]".repeat(900));
    let responses = [
        "\"\\u0000 \\ud83d\\ude00 é 日本 \\\\x00\"",
        deep.as_str(),
        "{\"a\":1,\"a\":2,\"big\":123456789012345678901234567890.5e99}",
    ];
    let mut outcomes = Vec::new();
    for (event, response) in held.iter().zip(responses) {
        let mut outcome = finished(event, Verdict::GiveUp);
        outcome.attempt.outcome = Outcome::Failure;
        outcome.attempt.response = Some(crate::events::raw(response));
        outcome.attempt.error = Some("it said 'x\0y' – 日本\n".into());
        outcome.attempt.status = Some(999);
        outcome.attempt.duration_ms = i64::MAX;
        outcomes.push(outcome);
    }
    assert!(store.finish_events(&outcomes).await.unwrap().is_empty());
    for (event, response) in held.iter().zip(responses) {
        let (_, attempts) = shown(&*store, event.event.id).await;
        let attempt = &attempts[0].attempt;
        assert_eq!(attempt.response.as_ref().unwrap().get(), response);
        assert_eq!(attempt.status, Some(999));
        assert!(attempt.error.as_ref().unwrap().contains("日本"));
    }
}
