//! Pages, cursors, and the rows behind changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use changefeed_core::{
    After, Change, Content, Cursor, DEFAULT_START, Feed, FeedBinding, FeedId, FeedName, Kind,
    MAX_PAGE, NewFeed, ShardId, Source, Store, TableName, Uuid,
};
use changefeed_engine::Changefeed;
use futures_util::StreamExt;
use serde_json::value::RawValue;

use crate::backend::{Backend, captured, ids, name, numbers, read_all};
use crate::events::everything;

async fn with_ten(backend: &Arc<dyn Backend>) -> (Arc<dyn Store>, Feed) {
    let (store, feed) = backend.feed(37, 1).await;
    let session = backend.session().await;
    session
        .run(&backend.words().publish_many(37, 0, 1..=10))
        .await;
    backend.settle(&*store).await;
    (store, feed)
}

/// `first`, `last`, and every number of the feed or before it.
pub async fn first_last_and_numbers_are_places_to_begin(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    let read = async |after: After, limit| {
        let page = store.read(&feed, ShardId(0), after, limit).await.unwrap();
        let ids: Vec<i64> = page.changes.iter().map(|c| c.change_id.unwrap()).collect();
        (ids, page.next)
    };
    let number = |n| Cursor::Number(DEFAULT_START + n);
    let all: Vec<i64> = (1..=10).collect();
    assert_eq!(read(After::First, 100).await, (all.clone(), number(10)));
    assert_eq!(read(After::First, 3).await, (vec![1, 2, 3], number(3)));
    assert_eq!(read(number(3).into(), 2).await, (vec![4, 5], number(5)));
    assert_eq!(read(number(0).into(), 100).await.0, all);
    assert_eq!(read(After::Last, 100).await, (vec![], number(10)));
    assert_eq!(read(number(9).into(), 100).await, (vec![10], number(10)));
    let page = store
        .read(&feed, ShardId(0), After::First, 1)
        .await
        .unwrap();
    assert_eq!(page.changes[0].content, Content::Unknown);
}

/// What got its number at a time or later, up to a second more; never less.
pub async fn a_time_is_a_place_to_begin(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    let now = || {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        After::Time(u64::try_from(since.as_millis()).unwrap())
    };
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let between = now();
    let session = backend.session().await;
    session
        .run(&backend.words().publish_many(37, 0, 11..=12))
        .await;
    backend.settle(&*store).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    for (after, expected) in [
        (After::Time(0), (1..=12).collect::<Vec<i64>>()),
        (between, vec![11, 12]),
        (now(), vec![]),
        (After::Time(u64::MAX), vec![]),
    ] {
        let page = store.read(&feed, ShardId(0), after, 100).await.unwrap();
        let ids: Vec<i64> = page.changes.iter().map(|c| c.change_id.unwrap()).collect();
        assert_eq!(ids, expected, "{after}");
        // What follows is read from there, however the page was asked for.
        let next = store.read(&feed, ShardId(0), page.next.into(), 100).await;
        assert!(next.unwrap().changes.is_empty());
    }
}

/// A reader may ask again and again with what it got.
pub async fn an_empty_page_keeps_the_cursor(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    for after in [After::First, After::Last] {
        let page = store.read(&feed, ShardId(0), after, 10).await.unwrap();
        assert!(page.changes.is_empty());
        let again = store
            .read(&feed, ShardId(0), page.next.into(), 10)
            .await
            .unwrap();
        assert!(again.changes.is_empty());
        assert_eq!(again.next, page.next);
    }
    let before = store
        .read(&feed, ShardId(0), After::Last, 10)
        .await
        .unwrap()
        .next;
    backend
        .session()
        .await
        .run(&backend.words().publish(37, 0, 1))
        .await;
    backend.settle(&*store).await;
    let page = store
        .read(&feed, ShardId(0), before.into(), 10)
        .await
        .unwrap();
    assert_eq!(page.changes.len(), 1);
    assert_eq!(page.next, Cursor::Number(DEFAULT_START + 1));
}

/// It comes from another feed or another database, or from before a restore.
pub async fn a_cursor_ahead_of_the_feed_is_refused(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    for ahead in [DEFAULT_START + 11, i64::MAX] {
        let error = store
            .read(&feed, ShardId(0), Cursor::Number(ahead).into(), 10)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::CursorAhead, "{error:?}");
        assert!(error.message().contains(&ahead.to_string()), "{error:?}");
    }
}

/// Numbers alone cannot tell a database that was restored from the original.
pub async fn a_reader_of_before_a_recovery_is_told(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    let db = Changefeed::new(store.clone());
    let handle = db.feed(feed.name.as_str()).await.unwrap();
    let page = handle.read(ShardId(0), After::First, 3).await.unwrap();
    let life = page.incarnation;
    assert_eq!(db.incarnation().await.unwrap(), life);
    let known = handle.clone().expecting(Some(life));
    let mut following = Box::pin(known.follow(ShardId(0), page.next.into()));
    assert!(following.next().await.unwrap().is_ok());
    assert!(known.read(ShardId(0), page.next.into(), 3).await.is_ok());

    let next = db.recover().await.unwrap();
    assert_ne!(next, life);
    assert!(next.began_at() >= life.began_at());
    // What other instances read says so, too.
    let other = backend.store().await;
    for after in [After::First, After::Last, page.next.into()] {
        let read = other.read(&feed, ShardId(0), after, 3).await.unwrap();
        assert_eq!(read.incarnation, next);
    }
    let error = known
        .read(ShardId(0), page.next.into(), 3)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Recovered, "{error:?}");
    let wait = Duration::from_millis(1);
    let error = known.poll(ShardId(0), After::Last, 3, wait).await;
    assert_eq!(error.unwrap_err().kind(), Kind::Recovered);
    // Whoever was following meanwhile does not go on as if nothing had happened.
    backend
        .session()
        .await
        .run(&backend.words().publish(37, 0, 11))
        .await;
    backend.settle(&*store).await;
    let told = loop {
        if let Err(error) = following.next().await.unwrap() {
            break error;
        }
    };
    assert_eq!(told.kind(), Kind::Recovered, "{told:?}");
    // Who does not say where its cursor is from is not asked.
    assert!(handle.read(ShardId(0), page.next.into(), 3).await.is_ok());
    assert!(db.recover().await.unwrap().began_at() >= next.began_at());
}

/// One to ten thousand.
pub async fn a_page_size_out_of_bounds_is_refused(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    for limit in [0, MAX_PAGE + 1] {
        let error = store
            .read(&feed, ShardId(0), After::First, limit)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert_eq!(
            error.message(),
            format!("a page of {limit} changes is not possible: ask for 1 to 10000")
        );
    }
    let most = store
        .read(&feed, ShardId(0), After::First, MAX_PAGE)
        .await
        .unwrap();
    assert_eq!(most.changes.len(), 10);
}

/// With what there is instead.
pub async fn an_unknown_shard_or_feed_is_named(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let error = store
        .read(&feed, ShardId(2), After::First, 10)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    assert_eq!(error.message(), "feed 'feed-37' has no shard 2");
    assert_eq!(error.advice(), Some("its shards are 0, 1"));
    // A feed that was dropped by somebody else since we looked.
    let ghost = Feed {
        id: FeedId(99),
        name: FeedName::trusted("ghost".to_owned()),
        ..feed
    };
    for after in [After::First, After::Last, Cursor::Number(5).into()] {
        let error = store.read(&ghost, ShardId(0), after, 10).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{after}: {error:?}");
    }
}

/// The query of seed 003, in the dialect's words.
pub async fn plain_sql_reads_the_same_pages(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    let (session, words) = (backend.session().await, backend.words());
    let expected = numbers(&*store, &feed, 0).await;
    let mut cursor = 0;
    let mut found = Vec::new();
    loop {
        let rows = session.query(&words.read(37, 0, cursor, 4)).await.unwrap();
        if rows.is_empty() {
            break;
        }
        for row in rows {
            let number = |column: usize| row[column].as_ref().unwrap().parse::<i64>().unwrap();
            cursor = number(0);
            found.push((number(0), number(1)));
        }
    }
    assert_eq!(found, expected);
}

async fn joined(backend: &Arc<dyn Backend>) -> (Arc<dyn Store>, Feed) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    session
        .run("create table my_event (id integer primary key, note text, change_id bigint unique)")
        .await;
    let feed = store
        .create_feed(&NewFeed {
            id: Some(FeedId(37)),
            source: Some(Source::Joined {
                table: TableName::unqualified("my_event"),
                change_id_column: "change_id".to_owned(),
                shard_by: None,
            }),
            ..NewFeed::new(name("my-event"))
        })
        .await
        .unwrap();
    session.run(words.begin).await;
    for id in 1..=3 {
        let change_id = session.number(words.draw_change_id).await;
        session
            .run(&format!(
                "insert into my_event values ({id}, 'note {id}', {change_id})"
            ))
            .await;
        session.run(&words.publish(37, 0, change_id)).await;
    }
    session.run("commit").await;
    backend.settle(&*store).await;
    (store, feed)
}

/// The application keeps the `change_id` in a column of its table.
pub async fn a_joined_table_gives_its_rows(backend: Arc<dyn Backend>) {
    let (store, feed) = joined(&backend).await;
    assert!(matches!(feed.source, Some(Source::Joined { .. })));
    let changes = read_all(&*store, &feed, 0, 2).await;
    assert_eq!(changes.len(), 3);
    for (id, change) in (1..).zip(&changes) {
        let row: serde_json::Value =
            serde_json::from_str(change.content.row().unwrap().get()).unwrap();
        assert_eq!(row["id"], id);
        assert_eq!(row["note"], format!("note {id}"));
        assert_eq!(row["change_id"], change.change_id.unwrap());
    }
}

/// Said, not skipped.
pub async fn a_joined_row_that_is_gone_is_said_to_be_gone(backend: Arc<dyn Backend>) {
    let (store, feed) = joined(&backend).await;
    backend
        .session()
        .await
        .run("delete from my_event where id = 2")
        .await;
    let changes = read_all(&*store, &feed, 0, 10).await;
    assert!(matches!(changes[0].content, Content::Row(_)));
    assert_eq!(changes[1].content, Content::Gone);
    assert!(matches!(changes[2].content, Content::Row(_)));
}

/// Data that is older than the feed, with explicit numbers below the start.
pub async fn old_data_by_hand_gets_the_numbers_it_was_given(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    let (session, words) = (backend.session().await, backend.words());
    for (change_id, number) in [(501, 1), (502, 7), (503, DEFAULT_START)] {
        session
            .run(&words.publish_old(37, 0, change_id, number))
            .await;
    }
    let all = numbers(&*store, &feed, 0).await;
    assert_eq!(all[..3], [(1, 501), (7, 502), (DEFAULT_START, 503)]);
    assert_eq!(ids(&*store, &feed, 0).await.len(), 13);
    let page = store
        .read(&feed, ShardId(0), Cursor::Number(1).into(), 1)
        .await
        .unwrap();
    assert_eq!(page.changes[0].change_id, Some(502));
    session.run(&words.publish(37, 0, 11)).await;
    backend.settle(&*store).await;
    assert_eq!(
        numbers(&*store, &feed, 0).await.last(),
        Some(&(DEFAULT_START + 11, 11))
    );
}

/// A number above the start would collide with the next live change, a taken one is taken.
pub async fn old_data_by_hand_cannot_take_live_numbers(backend: Arc<dyn Backend>) {
    let (store, feed) = with_ten(&backend).await;
    let (session, words) = (backend.session().await, backend.words());
    session.run(&words.publish_old(37, 0, 500, 5)).await;
    for number in [5, DEFAULT_START + 1, DEFAULT_START + 11, i64::MAX, 0, -1] {
        let sql = words.publish_old(37, 0, 501, number);
        assert!(session.execute(&sql).await.is_err(), "number {number}");
    }
    assert_eq!(numbers(&*store, &feed, 0).await.len(), 11);
}

/// Whoever may publish can enter any change_id into any feed. What it means in another feed is not for
/// the readers of this one.
pub async fn a_change_id_of_another_feed_reads_as_nothing(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    for (id, table) in ["secret", "open"].into_iter().enumerate() {
        session
            .run(&format!(
                "create table {table} (id integer primary key, note varchar(20))"
            ))
            .await;
        let feed = captured(
            &format!("{table}_rows"),
            TableName::unqualified(table),
            None,
            1,
        );
        let id = i16::try_from(id).unwrap();
        let (rows, events) = (Some(FeedId(10 + id)), FeedId(20 + id));
        store
            .create_feed(&NewFeed { id: rows, ..feed })
            .await
            .unwrap();
        let feed = NewFeed {
            id: Some(events),
            ..NewFeed::new(name(&format!("{table}_events")))
        };
        store.create_feed(&feed).await.unwrap();
        let mut definition = everything(table, table);
        definition.capture.manual = true;
        definition.capture.feed = Some(FeedBinding {
            feed: feed.name,
            shard_by: None,
        });
        let trigger = store.create_trigger(&definition, false).await.unwrap();
        session
            .run(&format!("insert into {table} values (7, '{table}')"))
            .await;
        let payload = RawValue::from_string("{}".to_owned()).unwrap();
        let key = Uuid::from_u128(7 + u128::from(id.unsigned_abs()));
        store.invoke_trigger(&trigger, &payload, key).await.unwrap();
        while !store.backfill_trigger(&trigger, 10).await.unwrap().finished {}
    }
    backend.settle(&*store).await;
    let feeds = store.feeds().await.unwrap();
    let feed = |id: i16| feeds.iter().find(|f| f.id == FeedId(id)).unwrap();
    let own = ids(&*store, feed(10), 0).await;
    let events = ids(&*store, feed(20), 0).await;
    assert_eq!((own.len(), events.len()), (1, 3));
    for (id, change_ids) in [(11, &own), (21, &events)] {
        let before = read_all(&*store, feed(id), 0, 10).await;
        for change_id in change_ids {
            session.run(&words.publish(id, 0, *change_id)).await;
        }
        backend.settle(&*store).await;
        let after = read_all(&*store, feed(id), 0, 10).await;
        assert_eq!(after.len(), before.len() + change_ids.len());
        let (known, entered) = after.split_at(before.len());
        assert!(!known.iter().any(nothing), "{known:?}");
        assert!(entered.iter().all(nothing), "{entered:?}");
    }
    // Trimming a feed takes nothing of another along.
    let trimmed = store
        .trim(feed(11), Duration::ZERO.into(), 100)
        .await
        .unwrap();
    assert_eq!(trimmed.removed, 2);
    for id in [10, 20] {
        let changes = read_all(&*store, feed(id), 0, 10).await;
        assert!(!changes.iter().any(nothing), "{changes:?}");
    }
}

fn nothing(change: &Change) -> bool {
    matches!(change.content, Content::Unknown | Content::Gone)
}
