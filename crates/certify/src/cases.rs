//! Cases that every database has to pass, by SQL and by a store alone.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use changefeed::{Error, Kind, Result};
use changefeed_core::{
    After, Attempt, BatchOutcome, Capture, Content, Delivery, Feed, Finished, NewFeed, Outcome,
    RowOperation, ShardId, Source, Store, TableName, Take, TriggerDefinition, Verdict, Wanted,
    Watch, WatchSettings, WatchSpec,
};

use crate::place::{Place, Session};

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Arc<dyn Place>, Arc<dyn Store>) -> Running,
}

pub(crate) type Running = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// All cases, in the order in which they are run.
pub(crate) fn all() -> [Case; 7] {
    [
        Case {
            name: "installing twice changes nothing",
            run: |_, store| Box::pin(async move { installs_once(&store).await }),
        },
        Case {
            name: "promises 1 to 4: late commits, rollbacks and savepoints",
            run: |place, store| Box::pin(async move { numbers(&place, &store).await }),
        },
        Case {
            name: "a captured table tells operation, key and row",
            run: |place, store| Box::pin(async move { captures(&place, &store).await }),
        },
        Case {
            name: "promises 8 and 9: an event has one holder, and its attempts are logged",
            run: |place, store| Box::pin(async move { delivers(&place, &store).await }),
        },
        Case {
            name: "promises 9 and 10: a row has one holder, and its newer change comes after it",
            run: |place, store| Box::pin(async move { watches(&place, &store).await }),
        },
        Case {
            name: "a lease has one owner, and its generation grows",
            run: |_, store| Box::pin(async move { leases(&store).await }),
        },
        Case {
            name: "a reader is woken by a commit",
            run: |place, store| Box::pin(async move { wakes(&place, &store).await }),
        },
    ]
}

/// An error with these words, unless it holds.
pub(crate) fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::new(Kind::Database, why())),
    }
}

async fn installs_once(store: &Arc<dyn Store>) -> Result<()> {
    let again = store.migrate().await?;
    ensure(again.from == again.to, || {
        format!("a second migration did something: {again:?}")
    })
}

pub(crate) async fn settle(store: &Arc<dyn Store>, feed: &Feed) -> Result<()> {
    if store.needs_sweeping() {
        for shard in &feed.shards {
            while store.sweep(shard.sweep_group).await?.changes() > 0 {}
        }
    }
    Ok(())
}

pub(crate) fn publish(place: &Arc<dyn Place>, feed: &Feed, shard: i16, id: i64) -> String {
    let prefix = place.words().prefix;
    let feed = feed.id;
    format!("insert into {prefix}change (feed_id, shard, change_id) values ({feed}, {shard}, {id})")
}

pub(crate) async fn drawn(place: &Arc<dyn Place>, session: &dyn Session) -> Result<i64> {
    session.number(place.words().draw).await
}

async fn numbers(place: &Arc<dyn Place>, store: &Arc<dyn Store>) -> Result<()> {
    let words = place.words();
    let feed = store
        .create_feed(&NewFeed::new("certify-numbers".parse()?))
        .await?;
    let one = place.session().await?;
    let mut expected = Vec::new();
    if words.draws_are_final {
        // It draws its id first and commits last: it comes last, and nobody passes it by.
        let late = place.session().await?;
        late.run(words.begin).await?;
        let late_id = drawn(place, &*late).await?;
        late.run(&publish(place, &feed, 0, late_id)).await?;
        expected.push(committed(place, &feed, &*one).await?);
        settle(store, &feed).await?;
        late.run("commit").await?;
        expected.push(late_id);
        settle(store, &feed).await?;
    }
    one.run(words.begin).await?;
    let id = drawn(place, &*one).await?;
    one.run(&publish(place, &feed, 0, id)).await?;
    one.run("rollback").await?;
    one.run(words.begin).await?;
    let kept = drawn(place, &*one).await?;
    one.run(&publish(place, &feed, 0, kept)).await?;
    one.run(words.savepoint).await?;
    let taken_back = drawn(place, &*one).await?;
    one.run(&publish(place, &feed, 0, taken_back)).await?;
    one.run(words.rollback_to).await?;
    one.run("commit").await?;
    expected.push(kept);
    expected.push(committed(place, &feed, &*one).await?);
    settle(store, &feed).await?;
    let page = store.read(&feed, ShardId(0), After::First, 100).await?;
    let ids: Vec<i64> = page.changes.iter().filter_map(|c| c.change_id).collect();
    ensure(ids == expected, || {
        format!("read {ids:?}, and {expected:?} were committed")
    })?;
    let numbers: Vec<i64> = page
        .changes
        .iter()
        .filter_map(|c| c.cursor.number())
        .collect();
    let first = changefeed_core::DEFAULT_START + 1;
    let gapless = numbers
        .iter()
        .copied()
        .eq(first..first + numbers.len() as i64);
    ensure(gapless, || format!("the numbers are {numbers:?}"))?;
    let missing = one.run(&publish(place, &feed, 99, 1)).await;
    ensure(missing.is_err(), || {
        "a change for a shard that does not exist was taken".to_owned()
    })
}

/// One change in a transaction of its own.
async fn committed(place: &Arc<dyn Place>, feed: &Feed, session: &dyn Session) -> Result<i64> {
    session.run(place.words().begin).await?;
    let id = drawn(place, session).await?;
    session.run(&publish(place, feed, 0, id)).await?;
    session.run("commit").await?;
    Ok(id)
}

/// A table of the application, `name (id, note)`.
async fn table(place: &Arc<dyn Place>, name: &str) -> Result<Box<dyn Session>> {
    let session = place.session().await?;
    let text = place.words().text;
    session
        .run(&format!(
            "create table {name} (id integer primary key, note {text})"
        ))
        .await?;
    Ok(session)
}

async fn captures(place: &Arc<dyn Place>, store: &Arc<dyn Store>) -> Result<()> {
    let session = table(place, "captured").await?;
    let feed = store
        .create_feed(&NewFeed {
            source: Some(Source::captured(TableName::unqualified("captured"))),
            ..NewFeed::new("certify-captured".parse()?)
        })
        .await?;
    for sql in [
        "insert into captured values (1, 'a'), (2, 'a')",
        "update captured set note = 'b' where id = 1",
        "delete from captured where id = 2",
    ] {
        session.run(sql).await?;
    }
    session.run(place.words().begin).await?;
    session.run("insert into captured values (3, 'no')").await?;
    session.run("rollback").await?;
    settle(store, &feed).await?;
    let page = store.read(&feed, ShardId(0), After::First, 100).await?;
    let told: Vec<String> = page
        .changes
        .iter()
        .map(|change| {
            let op = change.op.map(|op| format!("{op:?}")).unwrap_or_default();
            let key = change.key.as_ref().map(|key| key.get()).unwrap_or_default();
            format!("{op} {key}")
        })
        .collect();
    let expected = [
        "Insert {\"id\":1}",
        "Insert {\"id\":2}",
        "Update {\"id\":1}",
        "Delete {\"id\":2}",
    ];
    // The rows of one statement have no order among themselves.
    let mut sorted = told.clone();
    if let Some(two) = sorted.get_mut(..2) {
        two.sort();
    }
    ensure(sorted == expected, || {
        format!("a captured table told {told:?}")
    })?;
    let row = page
        .changes
        .iter()
        .find_map(|change| match &change.content {
            Content::Row(row) => Some(row.get().to_owned()),
            _ => None,
        });
    let row = row.unwrap_or_default();
    ensure(row == "{\"id\":1,\"note\":\"b\"}", || {
        format!("a row was read as {row}")
    })
}

async fn delivers(place: &Arc<dyn Place>, store: &Arc<dyn Store>) -> Result<()> {
    let session = table(place, "delivered").await?;
    let definition = TriggerDefinition {
        name: "certify".parse()?,
        table: TableName::unqualified("delivered"),
        capture: Capture::everything(),
        delivery: Delivery::default(),
    };
    let trigger = store.create_trigger(&definition, false).await?;
    session
        .run("insert into delivered values (1, 'a'), (2, 'b'), (3, 'c')")
        .await?;
    let wanted = Wanted {
        trigger: trigger.id,
        limit: 2,
        overall: None,
        ordered: false,
        debounced: false,
        paced: false,
    };
    let lease = Duration::from_secs(60);
    let one = store
        .claim_events(std::slice::from_ref(&wanted), "one", lease)
        .await?;
    let two = store
        .claim_events(std::slice::from_ref(&wanted), "two", lease)
        .await?;
    ensure((one.len(), two.len()) == (2, 1), || {
        format!(
            "of three events one instance got {} and the other {}",
            one.len(),
            two.len()
        )
    })?;
    let finished: Vec<Finished> = one
        .iter()
        .map(|event| Finished {
            claim: event.claim(),
            attempt: Attempt {
                number: event.attempt,
                outcome: Outcome::Success,
                status: Some(200),
                request: None,
                response: None,
                error: None,
                duration_ms: 1,
            },
            verdict: Verdict::Delivered,
        })
        .collect();
    let late = store.finish_events(&finished).await?;
    ensure(late.is_empty(), || {
        "a lease was lost while it lasted".to_owned()
    })?;
    // Told twice is one attempt.
    store.finish_events(&finished).await?;
    for event in &one {
        let shown = store.event(event.event.id).await?;
        let attempts = shown.map(|(_, attempts)| attempts.len());
        ensure(attempts == Some(1), || {
            format!("an event has the attempts {attempts:?}")
        })?;
    }
    store.release_events(&[two[0].claim()]).await?;
    let again = store.claim_events(&[wanted], "one", lease).await?;
    ensure(again.len() == 1 && again[0].attempt == 1, || {
        "an event that was given back was not there for the next".to_owned()
    })?;
    store.drop_trigger(&trigger).await
}

/// Everything there is to do for a watch: operations and ids.
pub(crate) async fn take_all(
    store: &Arc<dyn Store>,
    watch: &Watch,
) -> Result<Vec<(RowOperation, i64)>> {
    let settings = WatchSettings::default();
    let mut all = Vec::new();
    let take = Take {
        owner: "certify",
        settings: &settings,
    };
    while let Some(batch) = store.take(watch, take).await? {
        all.extend(batch.changes.iter().map(|change| {
            let item: Option<serde_json::Value> = serde_json::from_str(change.item.get()).ok();
            let id = item.and_then(|item| item["id"].as_i64());
            (change.operation, id.unwrap_or(i64::MIN))
        }));
        store
            .settle(watch, &batch, &BatchOutcome::Done, &settings)
            .await?;
    }
    Ok(all)
}

async fn watches(place: &Arc<dyn Place>, store: &Arc<dyn Store>) -> Result<()> {
    use RowOperation::{Insert, Update};
    let session = table(place, "watched").await?;
    let spec = WatchSpec::new("certify".parse()?, TableName::unqualified("watched"));
    let watch = store.open_watch(&spec).await?;
    session.run("insert into watched values (1, 'a')").await?;
    let settings = WatchSettings::default();
    let held = store
        .take(
            &watch,
            Take {
                owner: "one",
                settings: &settings,
            },
        )
        .await?;
    let held = held.ok_or_else(|| Error::new(Kind::Database, "a change was not handed over"))?;
    session
        .run("update watched set note = 'b' where id = 1")
        .await?;
    let other = take_all(store, &watch).await?;
    ensure(other.is_empty(), || {
        format!("a row in process was handed to another: {other:?}")
    })?;
    store
        .settle(&watch, &held, &BatchOutcome::Done, &settings)
        .await?;
    let newer = take_all(store, &watch).await?;
    ensure(newer == [(Update, 1)], || {
        format!("after it came {newer:?}")
    })?;
    session.run("insert into watched values (2, 'x')").await?;
    let next = take_all(store, &watch).await?;
    ensure(next == [(Insert, 2)], || format!("a new row was {next:?}"))?;
    store.drop_watch(&watch).await
}

async fn leases(store: &Arc<dyn Store>) -> Result<()> {
    let long = Duration::from_secs(60);
    let first = store.lease("certify", "one", long).await?;
    let first = first.ok_or_else(|| Error::new(Kind::Database, "a free lease was not granted"))?;
    let second = store.lease("certify", "two", long).await?;
    ensure(second.is_none(), || "a lease has two owners".to_owned())?;
    store.release(&first).await?;
    let second = store.lease("certify", "two", long).await?;
    let grown = second.is_some_and(|second| second.generation > first.generation);
    ensure(grown, || {
        "the generation did not grow with the owner".to_owned()
    })
}

async fn wakes(place: &Arc<dyn Place>, store: &Arc<dyn Store>) -> Result<()> {
    let feed = store
        .create_feed(&NewFeed::new("certify-wakes".parse()?))
        .await?;
    let session = place.session().await?;
    let mut waiter = store.listen(&feed, ShardId(0));
    // The first news may be that nothing is known yet.
    while tokio::time::timeout(Duration::from_millis(500), waiter.news())
        .await
        .is_ok()
    {}
    committed(place, &feed, &*session).await?;
    settle(store, &feed).await?;
    let told = tokio::time::timeout(Duration::from_secs(30), waiter.news()).await;
    ensure(told.is_ok(), || {
        "nobody was woken within 30 seconds".to_owned()
    })
}

pub(crate) const UNINSTALLS: &str = "uninstalling leaves the application as it was";

/// The last of all: the tables that were captured and watched can be written to without us.
pub(crate) async fn uninstalls(place: &Arc<dyn Place>, store: &Arc<dyn Store>) -> Result<()> {
    store.uninstall().await?;
    let session = place.session().await?;
    for table in ["captured", "delivered", "watched", "item"] {
        session
            .run(&format!("update {table} set note = 'z'"))
            .await?;
        session
            .run(&format!("insert into {table} values (-9, 'z')"))
            .await?;
    }
    Ok(())
}
