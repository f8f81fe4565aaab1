//! Feeds and shards, and what may be put into them.

use std::sync::Arc;

use changefeed_core::{
    DEFAULT_START, FIRST_CHANGE_ID, FeedId, Kind, NewFeed, ShardId, Source, SweepGroup, TableName,
};

use crate::backend::{Backend, captured, ids, name, numbers};

/// Seed 003: sweep group 0, long polling on, numbers from 2000000000000001.
pub async fn every_column_has_its_documented_default(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    session.run(&words.register(37, "myevent", &[0, 1])).await;
    let rows = session
        .query(&format!(
            "select shard, sweep_group, last_change_sequence_number, \
             case when cast(longpoll as integer) = 1 then 'on' end, \
             case when last_sweep_time is not null then 'set' end \
             from {} order by shard",
            words.our("shard")
        ))
        .await
        .unwrap();
    for (row, shard) in rows.iter().zip(["0", "1"]) {
        let row: Vec<_> = row.iter().map(|v| v.as_deref().unwrap_or("-")).collect();
        assert_eq!(row, [shard, "0", "2000000000000000", "on", "set"]);
    }
    assert_eq!(rows.len(), 2);
    let comment = session
        .query(&format!("select comment from {}", words.our("feed")))
        .await
        .unwrap();
    assert_eq!(comment, [[None]]);
    let made = store
        .create_feed(&NewFeed::new(name("ours")))
        .await
        .unwrap();
    assert_eq!(made.shards.len(), 1);
    assert_eq!(made.shards[0].sweep_group, SweepGroup(0));
    assert!(made.shards[0].longpoll);
    assert_ne!(made.id, FeedId(37), "the next free id");
    assert_eq!(made.source, None);
}

/// SQL is an interface: an application in any language needs nothing else.
pub async fn feeds_made_by_plain_sql_work_like_ours(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    session.run(&words.register(37, "myevent", &[0, 1])).await;
    let feeds = store.feeds().await.unwrap();
    assert_eq!(feeds.len(), 1);
    let feed = &feeds[0];
    assert_eq!((feed.id, feed.name.as_str()), (FeedId(37), "myevent"));
    assert_eq!(
        feed.shards.iter().map(|s| s.shard).collect::<Vec<_>>(),
        [ShardId(0), ShardId(1)]
    );
    session.run(&words.publish_many(37, 1, [10, 11])).await;
    backend.settle(&*store).await;
    assert_eq!(
        numbers(&*store, feed, 1).await,
        [(DEFAULT_START + 1, 10), (DEFAULT_START + 2, 11)]
    );
    assert_eq!(numbers(&*store, feed, 0).await, []);
}

/// Any small integer is a shard, negative ones too.
pub async fn shard_numbers_need_not_be_dense(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    let shards = [-32768, -1, 3, 700, 32767];
    session.run(&words.register(-5, "sparse", &shards)).await;
    for (id, shard) in (1i64..).zip(shards) {
        session.run(&words.publish(-5, shard, id)).await;
    }
    backend.settle(&*store).await;
    let feed = &store.feeds().await.unwrap()[0];
    for (id, shard) in (1i64..).zip(shards) {
        assert_eq!(
            numbers(&*store, feed, shard).await,
            [(DEFAULT_START + 1, id)]
        );
    }
}

/// Each feed and shard is a change feed of its own.
pub async fn any_number_of_feeds_with_shards_of_their_own(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    for feed in 0..12 {
        store
            .create_feed(&NewFeed {
                id: Some(FeedId(feed)),
                shards: 2,
                ..NewFeed::new(name(&format!("f{feed}")))
            })
            .await
            .unwrap();
    }
    for id in 0..48i64 {
        let feed = i16::try_from(id % 12).unwrap();
        let shard = i16::try_from(id % 24 / 12).unwrap();
        session.run(&words.publish(feed, shard, id)).await;
    }
    backend.settle(&*store).await;
    let feeds = store.feeds().await.unwrap();
    assert_eq!(feeds.len(), 12);
    for feed in &feeds {
        for shard in 0..2 {
            let first = i64::from(feed.id.0) + 12 * i64::from(shard);
            assert_eq!(
                numbers(&*store, feed, shard).await,
                [(DEFAULT_START + 1, first), (DEFAULT_START + 2, first + 24)]
            );
        }
    }
}

/// One insert per feed, the same change id in each.
pub async fn one_change_in_several_feeds(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    for feed in [1, 2, 3] {
        session
            .run(&words.register(feed, &format!("f{feed}"), &[0]))
            .await;
    }
    session.run(words.begin).await;
    for feed in [1, 2, 3] {
        session.run(&words.publish(feed, 0, 77)).await;
    }
    session.run("commit").await;
    backend.settle(&*store).await;
    for feed in store.feeds().await.unwrap() {
        assert_eq!(ids(&*store, &feed, 0).await, [77]);
    }
}

/// Creating is all or nothing, and never changes what is there.
pub async fn a_name_or_an_id_is_taken_once(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    for new in [
        NewFeed::new(feed.name.clone()),
        NewFeed {
            id: Some(FeedId(37)),
            ..NewFeed::new(name("other"))
        },
    ] {
        let error = store.create_feed(&new).await.unwrap_err();
        assert_eq!(error.kind(), Kind::AlreadyExists, "{error:?}");
    }
    assert_eq!(store.feeds().await.unwrap(), [feed]);
}

/// Whoever inserts feeds by SQL is held to the same names.
pub async fn a_feed_name_that_no_url_could_hold_is_refused_by_the_database(
    backend: Arc<dyn Backend>,
) {
    let store = backend.installed().await;
    let (session, feed) = (backend.session().await, backend.words().our("feed"));
    for bad in ["", "a b", "a/b", "é"] {
        let sql = format!("insert into {feed} (feed_id, name) values (1, '{bad}')");
        assert!(session.execute(&sql).await.is_err(), "{bad:?}");
    }
    assert!(store.feeds().await.unwrap().is_empty());
}

/// A typing error costs nothing but a sentence.
pub async fn a_missing_table_or_column_is_named_and_nothing_is_made(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run("create table orders (id integer primary key, customer integer)")
        .await;
    let missing = |new| {
        let store = Arc::clone(&store);
        async move { store.create_feed(&new).await.unwrap_err() }
    };
    let orders = TableName::unqualified("orders");
    let error = missing(captured("f", TableName::unqualified("odrers"), None, 1)).await;
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    assert!(error.message().contains("odrers"), "{error:?}");
    let error = missing(captured("f", orders.clone(), Some("custmer"), 2)).await;
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    assert!(error.message().contains("custmer"), "{error:?}");
    let error = missing(NewFeed {
        source: Some(Source::Joined {
            table: orders.clone(),
            change_id_column: "changeid".to_owned(),
            shard_by: None,
        }),
        ..NewFeed::new(name("f"))
    })
    .await;
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    assert!(error.message().contains("changeid"), "{error:?}");
    let error = missing(captured("f", orders, None, 2)).await;
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    let error = missing(NewFeed {
        shards: 0,
        ..NewFeed::new(name("f"))
    })
    .await;
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(store.feeds().await.unwrap().is_empty());
    session.run("insert into orders values (1, 1)").await;
}

/// Never a change that waits for ever.
pub async fn an_unknown_shard_refuses_the_insert(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    for (feed_id, shard) in [(37, 1), (37, -1), (38, 0)] {
        let error = session
            .execute(&words.publish(feed_id, shard, 1))
            .await
            .unwrap_err();
        assert!(error.message.contains("changefeed: "), "{error}");
        let error = session
            .execute(&words.publish_old(feed_id, shard, 1, 5))
            .await
            .unwrap_err();
        assert!(error.message.contains("changefeed: "), "{error}");
    }
    session.run(&words.publish(37, 0, 1)).await;
    backend.settle(&*store).await;
    assert_eq!(ids(&*store, &feed, 0).await, [1]);
}

/// `last_change_sequence_number` given at creation, by SQL and by us.
pub async fn an_own_start_is_where_numbers_begin(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    let ours = store
        .create_feed(&NewFeed {
            id: Some(FeedId(1)),
            start: 0,
            ..NewFeed::new(name("ours"))
        })
        .await
        .unwrap();
    session
        .run(&format!(
            "insert into {} (feed_id, name) values (2, 'theirs'); \
             insert into {} (feed_id, shard, last_change_sequence_number) values (2, 0, 41)",
            words.our("feed"),
            words.our("shard")
        ))
        .await;
    let feeds = store.feeds().await.unwrap();
    let theirs = feeds.iter().find(|f| f.id == FeedId(2)).unwrap();
    for feed in [1, 2] {
        session.run(&words.publish_many(feed, 0, [8, 9])).await;
    }
    backend.settle(&*store).await;
    assert_eq!(numbers(&*store, &ours, 0).await, [(1, 8), (2, 9)]);
    assert_eq!(numbers(&*store, theirs, 0).await, [(42, 8), (43, 9)]);
    assert_eq!(
        store.shard_states(theirs).await.unwrap()[0]
            .last
            .number()
            .unwrap(),
        43
    );
}

/// And its id and name are free for another, which begins from scratch.
pub async fn a_dropped_feed_takes_everything_with_it(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let (session, words) = (backend.session().await, backend.words());
    session.run(&words.publish_many(37, 0, 1..20)).await;
    backend.settle(&*store).await;
    // These have no number yet where numbers come from a sweep.
    session.run(&words.publish_many(37, 1, 20..30)).await;
    let consumer = "c".parse().unwrap();
    let cursor = changefeed_core::Cursor::Number(DEFAULT_START + 3);
    store
        .store_cursor(&consumer, &feed, ShardId(0), None, cursor)
        .await
        .unwrap();
    store.drop_feed(&feed).await.unwrap();
    assert!(store.feeds().await.unwrap().is_empty());
    assert!(store.consumers().await.unwrap().is_empty());
    assert!(session.execute(&words.publish(37, 0, 99)).await.is_err());
    let (store, again) = backend.feed(37, 2).await;
    backend.settle(&*store).await;
    assert_eq!(numbers(&*store, &again, 0).await, []);
    assert_eq!(numbers(&*store, &again, 1).await, []);
    session.run(&words.publish(37, 1, 5)).await;
    backend.settle(&*store).await;
    assert_eq!(numbers(&*store, &again, 1).await, [(DEFAULT_START + 1, 5)]);
}

/// The sequence is a convenience; numbering does not rely on it.
pub async fn change_ids_may_come_from_anywhere(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    let strange = [i64::MAX, i64::MIN, 0, -1, 5];
    for id in strange {
        session.run(&words.publish(37, 0, id)).await;
        backend.settle(&*store).await;
    }
    assert_eq!(ids(&*store, &feed, 0).await, strange);
}

/// 1000000000000000, and one more each time.
pub async fn the_sequence_begins_where_it_is_documented(backend: Arc<dyn Backend>) {
    backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    for expected in FIRST_CHANGE_ID..FIRST_CHANGE_ID + 3 {
        assert_eq!(session.number(words.draw_change_id).await, expected);
    }
}
