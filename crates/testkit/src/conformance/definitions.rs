//! Many definitions at once.

use std::sync::Arc;

use changefeed_core::{
    Capture, Delivery, Feed, Fold, Kind, NewFeed, RowOperation, Shard, Source, Step, SweepGroup,
    TableName, TriggerDefinition, WatchSpec,
};

use serde_json::json;

use crate::backend::{Backend, numbers};
use crate::watching::{quick, take_all};

const TABLE: &str = "create table orders (id integer primary key, note varchar(100))";

fn feed(name: &str, id: i16, source: Option<Source>) -> NewFeed {
    NewFeed {
        id: Some(changefeed_core::FeedId(id)),
        source,
        ..NewFeed::new(name.parse().unwrap())
    }
}

fn trigger(name: &str, table: &TableName) -> TriggerDefinition {
    TriggerDefinition {
        name: name.parse().unwrap(),
        table: table.clone(),
        capture: Capture {
            insert: true,
            ..Capture::default()
        },
        delivery: Delivery::default(),
    }
}

fn in_group(feed: &Feed, group: i16) -> Feed {
    Feed {
        shards: feed
            .shards
            .iter()
            .map(|s| Shard {
                sweep_group: SweepGroup(group),
                ..s.clone()
            })
            .collect(),
        ..feed.clone()
    }
}

/// Created, changed, paused and dropped, each in one go; another instance sees it.
pub async fn steps_are_taken_together(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let app = backend.session().await;
    app.run(TABLE).await;
    let table = a
        .find_table(&TableName::unqualified("orders"))
        .await
        .unwrap();
    let source = Source::captured(table.clone());
    a.apply(&[]).await.unwrap();
    a.apply(&[
        Step::CreateFeed(feed("orders", 37, Some(source.clone()))),
        Step::CreateTrigger(trigger("created", &table)),
        Step::PauseTrigger("created".parse().unwrap(), Some("for now".to_owned())),
    ])
    .await
    .unwrap();
    let created = b.feeds().await.unwrap().remove(0);
    assert_eq!(created.source, Some(source));
    let paused = b.triggers().await.unwrap().remove(0);
    assert_eq!(paused.definition, trigger("created", &table));
    assert_eq!(paused.paused.as_deref(), Some("for now"));
    app.run("insert into orders values (1, 'x')").await;
    backend.settle(&*a).await;
    assert_eq!(numbers(&*b, &created, 0).await.len(), 1);

    let changed = Feed {
        comment: Some("it's \"changed\"".to_owned()),
        ..in_group(&created, 4)
    };
    let mut other = trigger("created", &table);
    other.capture.manual = true;
    b.apply(&[
        Step::ChangeFeed(changed.clone()),
        Step::ChangeTrigger(other.clone()),
        Step::PauseTrigger("created".parse().unwrap(), None),
    ])
    .await
    .unwrap();
    assert_eq!(a.feeds().await.unwrap(), [changed]);
    let resumed = a.triggers().await.unwrap().remove(0);
    assert_eq!((&resumed.definition, &resumed.paused), (&other, &None));
    assert_eq!(resumed.id, paused.id, "it is the same trigger");

    a.apply(&[
        Step::DropTrigger(resumed),
        Step::DropFeed(created),
        Step::CreateFeed(feed("again", 37, None)),
    ])
    .await
    .unwrap();
    assert!(b.triggers().await.unwrap().is_empty());
    assert_eq!(b.feeds().await.unwrap()[0].name.as_str(), "again");
    app.run("insert into orders values (2, 'y')").await;
}

/// Whatever the last step is.
pub async fn a_step_that_fails_undoes_those_before_it(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let app = backend.session().await;
    app.run(TABLE).await;
    let table = store
        .find_table(&TableName::unqualified("orders"))
        .await
        .unwrap();
    let kept = store.create_feed(&feed("kept", 1, None)).await.unwrap();
    let source = Source::captured(table.clone());
    let mut unfit = trigger("unfit", &table);
    unfit.capture.payload = Some(vec!["nosuch".to_owned()]);
    let gone = Feed {
        id: changefeed_core::FeedId(99),
        ..kept.clone()
    };
    let failing = [
        Step::CreateFeed(feed("kept", 2, None)),
        Step::CreateTrigger(unfit),
        Step::DropFeed(gone.clone()),
        Step::ChangeFeed(gone),
        Step::PauseTrigger("nosuch".parse().unwrap(), None),
    ];
    for fails in failing {
        let steps = [
            Step::CreateFeed(feed("orders", 37, Some(source.clone()))),
            Step::CreateTrigger(trigger("created", &table)),
            Step::ChangeFeed(in_group(&kept, 9)),
            Step::DropFeed(kept.clone()),
            Step::CreateFeed(feed("kept", 3, None)),
            fails.clone(),
        ];
        let error = store.apply(&steps).await.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                Kind::AlreadyExists | Kind::NotFound | Kind::Invalid
            ),
            "{fails:?}: {error:?}"
        );
        assert_eq!(
            store.feeds().await.unwrap(),
            std::slice::from_ref(&kept),
            "{fails:?}"
        );
        assert!(store.triggers().await.unwrap().is_empty(), "{fails:?}");
        app.run("insert into orders values (1, 'x')").await;
        app.run("delete from orders").await;
    }
}

/// All or nothing, watches too; and one that is dropped may be put on another table at once.
pub async fn watches_are_put_and_dropped_together_with_the_rest(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let app = backend.session().await;
    app.run(TABLE).await;
    app.run("create table other (id integer primary key, note varchar(100))")
        .await;
    let found = async |table: &str| {
        let table = TableName::unqualified(table);
        store.find_table(&table).await.unwrap()
    };
    let put =
        |table: &TableName| Step::PutWatch(WatchSpec::new("f".parse().unwrap(), table.clone()));
    let (orders, other) = (found("orders").await, found("other").await);
    let fails = Step::PauseTrigger("nosuch".parse().unwrap(), None);
    store
        .apply(&[put(&orders), fails.clone()])
        .await
        .unwrap_err();
    assert!(store.watches().await.unwrap().is_empty());
    store.apply(&[put(&orders)]).await.unwrap();
    let first = store.watches().await.unwrap().remove(0);
    let moved = [Step::DropWatch(first.clone()), put(&other)];
    let mut failing = moved.to_vec();
    failing.push(fails);
    store.apply(&failing).await.unwrap_err();
    assert_eq!(store.watches().await.unwrap()[0].table, first.table);
    app.run("insert into orders values (1, 'for nobody any more')")
        .await;
    store.apply(&moved).await.unwrap();
    let watch = store.watches().await.unwrap().remove(0);
    app.run("insert into other values (2, 'x')").await;
    assert_eq!(
        take_all(&*store, &watch, &quick()).await,
        [[(RowOperation::Insert, json!({"id": 2, "note": "x"}))]]
    );
}

/// Who sweeps is one thing, and what is numbered another.
pub async fn a_feed_goes_to_another_sweep_group_while_it_is_written_to(backend: Arc<dyn Backend>) {
    const ROUNDS: i64 = 20;
    let (store, made) = backend.feed(37, 1).await;
    let other = backend.store().await;
    let app = backend.session().await;
    let words = backend.words();
    let writing = async {
        for round in 0..ROUNDS {
            app.run(words.begin).await;
            app.run(&words.publish_many(37, 0, 1 + round * 10..=10 + round * 10))
                .await;
            app.run("commit").await;
        }
    };
    let moving = async {
        for round in 0..ROUNDS {
            let group = i16::try_from(round % 3).unwrap();
            let change = [Step::ChangeFeed(in_group(&made, group))];
            store.apply(&change).await.unwrap();
        }
    };
    let sweeping = async {
        for round in 0..ROUNDS {
            let group = SweepGroup(i16::try_from(round % 3).unwrap());
            other.sweep(group).await.unwrap();
        }
    };
    tokio::join!(writing, moving, sweeping);
    store
        .apply(&[Step::ChangeFeed(in_group(&made, 0))])
        .await
        .unwrap();
    backend.settle(&*store).await;
    let (all, mut ids): (Vec<i64>, Vec<i64>) = numbers(&*store, &made, 0).await.into_iter().unzip();
    let first = changefeed_core::DEFAULT_START + 1;
    let gapless: Vec<i64> = (first..first + ROUNDS * 10).collect();
    assert_eq!(all, gapless);
    ids.sort_unstable();
    assert_eq!(ids, (1..=ROUNDS * 10).collect::<Vec<i64>>());
}

/// And one that is not there is named.
pub async fn a_table_is_found_by_the_name_that_definitions_are_read_back_with(
    backend: Arc<dyn Backend>,
) {
    let store = backend.installed().await;
    let app = backend.session().await;
    app.run(TABLE).await;
    app.run("create table \"Weird name\" (\"Id\" integer primary key)")
        .await;
    let typed = match store.dialect().fold {
        Fold::Lower => "orders",
        Fold::Keep => "ORDERS",
    };
    for (id, name) in [(1, typed), (2, "Weird name")] {
        let found = store
            .find_table(&TableName::unqualified(name))
            .await
            .unwrap();
        assert_eq!(store.find_table(&found).await.unwrap(), found);
        let source = Source::captured(TableName::unqualified(name));
        let name = format!("feed-{id}");
        store
            .create_feed(&feed(&name, id, Some(source)))
            .await
            .unwrap();
        let feeds = store.feeds().await.unwrap();
        let made = feeds.into_iter().find(|f| f.id.0 == id).unwrap();
        assert_eq!(made.source.unwrap().table(), Some(&found));
    }
    let missing = TableName::unqualified("nosuch");
    let error = store.find_table(&missing).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
}
