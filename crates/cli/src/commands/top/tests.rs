//! What a real database looks like on a screen.

use std::sync::Arc;
use std::time::Duration;

use changefeed::Looks;
use changefeed::view::Status;
use changefeed::{
    Announcement, Capture, Delivery, Incident, NewFeed, ShardId, Sink, Source, TableName, Tallies,
    TriggerDefinition, WatchDefinition, WatchSpec,
};
use changefeed_testkit::backend::{Backend, SqliteBackend};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;

use super::screen::{Screen, View};
use super::terminal::Key;

/// A database with some of everything, as `top` sees it.
async fn seen() -> Status {
    let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
    let store = backend.installed().await;
    let app = backend.session().await;
    app.run("create table orders (id integer primary key, note text)")
        .await;
    let table = TableName::unqualified("orders");
    let orders = NewFeed {
        shards: 2,
        source: Some(Source::Captured {
            table: table.clone(),
            shard_by: Some("id".to_owned()),
            images: false,
            when: None,
            columns: None,
        }),
        ..NewFeed::new("orders".parse().unwrap())
    };
    let orders = store.create_feed(&orders).await.unwrap();
    let mail = "mail".parse().unwrap();
    let start = changefeed::Cursor::Number(changefeed::DEFAULT_START);
    store
        .store_cursor(&mail, &orders, orders.shards[1].shard, None, start)
        .await
        .unwrap();
    for (name, paused) in [("paid", None), ("shipped", Some("by hand"))] {
        let definition = TriggerDefinition {
            name: name.parse().unwrap(),
            table: table.clone(),
            capture: Capture {
                insert: true,
                ..Capture::default()
            },
            delivery: Delivery::default(),
        };
        let trigger = store.create_trigger(&definition, false).await.unwrap();
        store.pause_trigger(&trigger, paused).await.unwrap();
    }
    let cat = WatchDefinition::new(Sink::Exec("cat".to_owned()));
    let spec = WatchSpec::served("index".parse().unwrap(), table, cat);
    store.open_watch(&spec).await.unwrap();
    let announcement = Announcement {
        name: "host/4711/18c2".to_owned(),
        roles: ["sweep", "deliver", "watch", "http"]
            .map(str::to_owned)
            .into(),
        address: None,
        version: "0.1.0".to_owned(),
        tallies: Tallies::default(),
    };
    let forget = Duration::from_secs(30);
    store.announce(&announcement, forget).await.unwrap();
    let lease = store.lease("sweep/0", "host/4711/18c2", forget).await;
    assert!(lease.unwrap().is_some());
    let db = changefeed::Changefeed::new(store);
    let mut looks = Looks::default();
    assert_eq!(looks.look(&db).await.unwrap().feeds[0].rate, None);
    app.run("insert into orders values (1, 'a'), (2, 'b'), (3, 'c')")
        .await;
    let status = looks.look(&db).await.unwrap();
    assert!(status.feeds[0].rate.unwrap() > 0.0);
    still(status)
}

/// The same with every time and rate one that does not change from run to run.
fn still(mut status: Status) -> Status {
    status.version = "0.0.0".to_owned();
    status.sampled_at = Some("2026-01-31T12:34:56.789Z".to_owned());
    for feed in &mut status.feeds {
        feed.rate = Some(12.34);
        for shard in &mut feed.shards {
            (shard.rate, shard.state.since_ms) = (Some(6.17), 1500);
        }
    }
    for consumer in &mut status.consumers {
        (consumer.lag_ms, consumer.idle_ms) = (61_000, 250);
    }
    for trigger in &mut status.triggers {
        trigger.state.overdue_ms = trigger.state.overdue_ms.map(|_| 40);
        (trigger.success_rate, trigger.failure_rate) = (Some(0.0), Some(250.4));
    }
    for instance in &mut status.instances {
        (instance.instance.up_ms, instance.instance.seen_ms) = (90_000_000, 1000);
    }
    for watch in &mut status.watches {
        watch.status.idle_ms = watch.status.idle_ms.map(|_| 20);
    }
    status
}

fn drawn(status: &Status, view: &mut View, error: Option<&str>, size: (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    let screen = Screen::new("postgres://db/shop", status, error);
    terminal
        .draw(|frame| screen.draw(view, frame.area(), frame.buffer_mut()))
        .unwrap();
    terminal.backend().to_string()
}

#[test]
fn a_database_at_a_glance() {
    changefeed_testkit::run(async {
        let mut status = seen().await;
        let view = &mut View::default();
        insta::assert_snapshot!("80x24", drawn(&status, view, None, (80, 24)));
        // More than there is room for: the chosen panel gets more of it, and can be scrolled.
        let shard = status.feeds[0].shards[0].clone();
        status.feeds[0].shards = (0..50)
            .map(|number| {
                let mut shard = shard.clone();
                shard.state.shard = ShardId(number);
                shard
            })
            .collect();
        status.incidents = vec![Incident {
            feed: "80270756-deeb-11ed-91f2-4f03a365d3f8".parse().unwrap(),
            shard: 0,
            count: 3,
            since_ms: 7_200_000,
        }];
        let screen = Screen::new("", &status, None);
        for key in [Key::Down, Key::PageDown, Key::NextPanel, Key::Up] {
            view.press(key, &screen);
        }
        insta::assert_snapshot!("80x24_full", drawn(&status, view, None, (80, 24)));
        view.press(Key::PreviousPanel, &screen);
        for _ in 0..99 {
            view.press(Key::PageDown, &screen);
        }
        insta::assert_snapshot!(
            "60x16_scrolled",
            drawn(
                &status,
                view,
                Some("no answer for 2.0 s: it is gone"),
                (60, 16)
            )
        );
    });
}

#[test]
fn nothing_known_is_not_the_same_as_nothing() {
    let view = &mut View::default();
    let unknown = drawn(&Status::default(), view, None, (80, 24));
    assert!(
        unknown.contains("no look yet") && !unknown.contains("FEEDS"),
        "{unknown}"
    );
    let empty = drawn(&still(Status::default()), view, None, (80, 24));
    assert!(empty.contains("FEEDS none yet"), "{empty}");
}

#[test]
fn no_size_is_too_small() {
    changefeed_testkit::run(async {
        let status = seen().await;
        let view = &mut View::default();
        for width in [0, 1, 5, 20, 300] {
            for height in [0, 1, 2, 3, 4, 7, 100] {
                let mut buffer = ratatui::buffer::Buffer::empty(Rect::new(0, 0, width, height));
                let screen = Screen::new("x", &status, None);
                screen.draw(view, buffer.area, &mut buffer);
                view.press(Key::NextPanel, &screen);
                view.press(Key::PageDown, &screen);
            }
        }
        let printed = Screen::new("x", &status, None).print(100);
        for panel in ["FEEDS", "CONSUMERS", "TRIGGERS", "WATCHES", "INSTANCES"] {
            let lines = printed.iter().filter(|line| line.starts_with(panel));
            assert_eq!(lines.count(), 1, "{printed:#?}");
        }
    });
}
