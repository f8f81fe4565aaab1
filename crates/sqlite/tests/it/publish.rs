//! Publishing by plain SQL.

use changefeed_core::{After, Cursor, DEFAULT_START, FIRST_CHANGE_ID, FeedStore, Kind, ShardId};
use changefeed_sqlite::rusqlite::Connection;

use crate::support::Lab;

const START: i64 = DEFAULT_START;

#[tokio::test]
async fn the_stock_shell_publishes_as_documented() {
    let lab = Lab::new().await;
    lab.shell(
        "insert into changefeed_feed(feed_id, name, comment) values (37, 'myevent', 'why');
         insert into changefeed_shard(feed_id, shard) values (37, 0), (37, 1);
         create table my_event(id integer primary key, note text, change_id integer unique);
         begin immediate;
         update changefeed_change_id set value = value + 1;
         insert into my_event values (1, 'hello', (select value from changefeed_change_id));
         insert into changefeed_change(feed_id, shard, change_id)
           select 37, 1, value from changefeed_change_id;
         commit;
         insert into changefeed_change(feed_id, shard, change_id) values (37, 1, 5), (37, 0, 6);
         insert into changefeed_change(feed_id, shard) values (37, 1);",
    )
    .unwrap();
    let feed = &lab.store.feeds().await.unwrap()[0];
    assert_eq!(feed.comment.as_deref(), Some("why"));
    assert_eq!(
        lab.numbers(feed, 1).await,
        [
            (START + 1, FIRST_CHANGE_ID),
            (START + 2, 5),
            (START + 3, FIRST_CHANGE_ID + 1)
        ]
    );
    assert_eq!(lab.numbers(feed, 0).await, [(START + 1, 6)]);
    let shell = lab
        .shell("select * from changefeed_change where feed_id = 37 and shard = 0;")
        .unwrap();
    assert_eq!(shell, "37|0|6|2000000000000001\n");
}

#[tokio::test]
async fn what_cannot_be_published_is_refused_with_a_sentence_and_leaves_no_gap() {
    let lab = Lab::new().await;
    let feed = lab.feed(37, 1).await;
    lab.shell("insert into changefeed_change(feed_id, shard, change_id) values (37, 0, 1);")
        .unwrap();
    for clause in [
        "",
        "or abort",
        "or fail",
        "or ignore",
        "or replace",
        "or rollback",
    ] {
        for (values, sentence) in [
            (
                "(feed_id, shard, change_id) values (37, 5, 1)",
                "has no such shard",
            ),
            (
                "(feed_id, shard, change_id) values (37, 0, 'x')",
                "change_id",
            ),
            (
                "(feed_id, shard, change_id) values (37, 0, 1.5)",
                "change_id",
            ),
            ("values (37, 0, 1, 2000000000000001)", "up to the start"),
            ("values (37, 0, 1, 2000000000000009)", "up to the start"),
            ("values (37, 0, 1, 0)", "above 0"),
            ("values (37, 0, 1, 'x')", "above 0"),
            ("values (37, 9, 1, 3)", "has no such shard"),
        ] {
            let sql = format!("insert {clause} into changefeed_change {values};");
            let error = lab.shell(&sql).unwrap_err();
            assert!(error.contains(sentence), "{sql}: {error}");
        }
        // The clause does no harm where nothing is wrong.
        lab.shell(&format!(
            "insert {clause} into changefeed_change(feed_id, shard, change_id) values (37, 0, 2);"
        ))
        .unwrap();
    }
    let expected: Vec<i64> = (1..=7).map(|n| START + n).collect();
    let found: Vec<i64> = lab.numbers(&feed, 0).await.iter().map(|c| c.0).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_taken_number_is_never_replaced() {
    let lab = Lab::new().await;
    let feed = lab.feed(37, 1).await;
    let app = lab.app();
    app.execute_batch("insert into changefeed_change values (37, 0, 100, 17)")
        .unwrap();
    for clause in ["", "or ignore", "or replace"] {
        let sql = format!("insert {clause} into changefeed_change values (37, 0, 101, 17)");
        let error = app.execute_batch(&sql).unwrap_err().to_string();
        assert!(error.contains("is taken"), "{error}");
    }
    assert_eq!(lab.numbers(&feed, 0).await, [(17, 100)]);
}

#[tokio::test]
async fn a_rollback_and_a_savepoint_leave_no_gap() {
    let lab = Lab::new().await;
    let feed = lab.feed(37, 1).await;
    let app = lab.app();
    let publish = |id: i64| {
        let sql = "insert into changefeed_change (feed_id, shard, change_id) values (37, 0, ?1)";
        app.execute(sql, [id]).unwrap();
    };
    publish(1);
    app.execute_batch("begin immediate").unwrap();
    publish(2);
    app.execute_batch("rollback; begin immediate").unwrap();
    publish(3);
    app.execute_batch("savepoint s").unwrap();
    publish(4);
    app.execute_batch("rollback to s").unwrap();
    publish(5);
    app.execute_batch("commit").unwrap();
    assert_eq!(
        lab.numbers(&feed, 0).await,
        [(START + 1, 1), (START + 2, 3), (START + 3, 5)]
    );
}

#[tokio::test]
async fn numbers_go_on_after_everything_was_trimmed() {
    let lab = Lab::new().await;
    let feed = lab.feed(37, 1).await;
    let app = lab.app();
    publish_many(&app, 1..=5);
    lab.store
        .trim(&feed, std::time::Duration::ZERO.into(), 100)
        .await
        .unwrap();
    publish_many(&app, 6..=6);
    assert_eq!(lab.numbers(&feed, 0).await, [(START + 6, 6)]);
}

fn publish_many(app: &Connection, ids: std::ops::RangeInclusive<i64>) {
    for id in ids {
        let sql = "insert into changefeed_change (feed_id, shard, change_id) values (37, 0, ?1)";
        app.execute(sql, [id]).unwrap();
    }
}

#[tokio::test]
async fn shards_have_defaults_and_guards() {
    let lab = Lab::new().await;
    lab.feed(1, 1).await;
    let refused = lab
        .shell("insert into changefeed_shard(feed_id, shard) values (2, 0);")
        .unwrap_err();
    assert!(refused.contains("there is no such feed"), "{refused}");
    for clause in ["", "or replace", "or ignore"] {
        let sql = format!("insert {clause} into changefeed_shard(feed_id, shard) values (1, 0);");
        let refused = lab.shell(&sql).unwrap_err();
        assert!(refused.contains("exists already"), "{refused}");
    }
    lab.shell(
        "insert into changefeed_shard(feed_id, shard, last_change_sequence_number, longpoll)
           values (1, 7, 41, 0);
         update changefeed_shard set sweep_group = 3 where shard = 7;
         insert into changefeed_change(feed_id, shard, change_id) values (1, 7, 1);",
    )
    .unwrap();
    let refused = lab
        .shell("update changefeed_shard set last_change_sequence_number = 5;")
        .unwrap_err();
    assert!(
        refused.contains("only sweep_group and longpoll"),
        "{refused}"
    );
    assert_eq!(
        lab.shell("select shard, sweep_group, longpoll, last_change_sequence_number, last_sweep_time is not null from changefeed_shard order by shard;")
            .unwrap(),
        "0|0|1|2000000000000000|1\n7|3|0|42|1\n"
    );
    lab.shell("delete from changefeed_shard where shard = 7;")
        .unwrap();
    let feed = &lab.store.feeds().await.unwrap()[0];
    let error = lab
        .store
        .read(feed, ShardId(7), After::First, 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_cursor_of_another_kind_of_feed_or_ahead_is_refused() {
    let lab = Lab::new().await;
    let feed = lab.feed(37, 1).await;
    let ahead = Cursor::Number(START + 1);
    let error = lab
        .store
        .read(&feed, ShardId(0), ahead.into(), 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::CursorAhead);
    assert_eq!(
        error.message(),
        "cursor 2000000000000001 is ahead of feed 'feed-37' shard 0, whose last number is \
         2000000000000000"
    );
}
