//! The rows behind changes, as the table is now.

use changefeed_core::{After, FeedStore, Kind, NewFeed, Source, TableName};

use crate::support::{Lab, named};

#[tokio::test]
async fn a_table_that_is_altered_or_renamed_is_followed() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, v text)")
        .unwrap();
    let feed = lab.captured("t", Some("v"), 2).await;
    app.execute_batch("insert into t values (1, 'a')").unwrap();
    let shard = i16::from(lab.rows(&feed, 0).await.is_empty());
    for (alter, row) in [
        (
            "alter table t add column w integer default 7",
            "{\"id\":1,\"v\":\"a\",\"w\":7}",
        ),
        (
            "alter table t rename column id to key",
            "{\"key\":1,\"v\":\"a\",\"w\":7}",
        ),
        (
            "alter table t add column g as (w * 2)",
            "{\"key\":1,\"v\":\"a\",\"w\":7,\"g\":14}",
        ),
        (
            "alter table t rename to \"other t\"",
            "{\"key\":1,\"v\":\"a\",\"w\":7,\"g\":14}",
        ),
        (
            "alter table \"other t\" drop column g",
            "{\"key\":1,\"v\":\"a\",\"w\":7}",
        ),
    ] {
        app.execute_batch(alter).unwrap();
        assert_eq!(lab.rows(&feed, shard).await, [row], "{alter}");
    }
    app.execute_batch("update \"other t\" set w = 8").unwrap();
    assert_eq!(
        lab.rows(&feed, shard).await,
        vec!["{\"key\":1,\"v\":\"a\",\"w\":8}"; 2]
    );
    assert_eq!(lab.store.backfill(&feed, 10).await.unwrap().added, 1);
    app.execute_batch("drop table \"other t\"").unwrap();
    let error = lab
        .store
        .read(&feed, changefeed_core::ShardId(shard), After::First, 10)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!(
        error.message(),
        "table t behind feed 'captured-2' no longer exists"
    );
    lab.store.drop_feed(&feed).await.unwrap();
}

#[tokio::test]
async fn a_change_with_several_rows_or_none_is_one_change() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table e (id integer primary key, change_id integer);
         create index e_change_id on e (change_id);",
    )
    .unwrap();
    let feed = lab.joined("e").await;
    app.execute_batch(
        "insert into e values (1, 100), (2, 100), (3, 101);
         insert into changefeed_change (feed_id, shard, change_id)
           values (1, 0, 100), (1, 0, 101), (1, 0, 102);",
    )
    .unwrap();
    assert_eq!(
        lab.rows(&feed, 0).await,
        [
            "{\"id\":1,\"change_id\":100}",
            "{\"id\":3,\"change_id\":101}",
            "gone"
        ]
    );
    let page = lab.page(&feed, 0, After::First, 2).await;
    assert_eq!(page.changes.len(), 2);
    let page = lab.page(&feed, 0, page.next.into(), 2).await;
    assert_eq!(page.changes[0].change_id, Some(102));
}

#[tokio::test]
async fn a_view_can_be_joined() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table e (id integer primary key, change_id integer unique);
         create view v as select id * 2 as twice, change_id from e;
         insert into e values (21, 5);",
    )
    .unwrap();
    let feed = lab.joined("v").await;
    app.execute_batch("insert into changefeed_change (feed_id, shard, change_id) values (1, 0, 5)")
        .unwrap();
    assert_eq!(lab.rows(&feed, 0).await, ["{\"twice\":42,\"change_id\":5}"]);
    let error = lab
        .store
        .create_feed(&NewFeed {
            source: Some(Source::Joined {
                table: TableName::unqualified("v"),
                change_id_column: "nope".to_owned(),
                shard_by: None,
            }),
            ..named("x")
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_change_put_into_a_captured_feed_by_hand_has_no_known_row() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key)")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    app.execute_batch(
        "insert into t values (1);
         insert into changefeed_change (feed_id, shard, change_id) values (1, 0, 5);",
    )
    .unwrap();
    assert_eq!(lab.rows(&feed, 0).await, ["{\"id\":1}", "unknown"]);
}

/// With the stock shell: what happened and to which row, by the documented query, and never over a gap.
#[tokio::test]
async fn a_page_in_sql_tells_what_happened() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table orders (id integer primary key, note text); insert into orders values (1, 'old')",
    )
    .unwrap();
    let feed = lab.captured("orders", None, 1).await;
    app.execute_batch("insert into orders values (2, 'b'); delete from orders where id = 2")
        .unwrap();
    lab.store.backfill(&feed, 10).await.unwrap();
    let page = |cursor: i64| {
        lab.shell(&format!(
            "select r.op, r.key1, o.note from changefeed_read r left join orders o on o.id = r.key1 \
             where r.feed_id = {} and r.shard = 0 \
               and r.change_sequence_number > {cursor} and r.lowest_cursor <= {cursor} \
             order by r.change_sequence_number limit 100;",
            feed.id.0
        ))
        .unwrap()
    };
    assert_eq!(page(0), "backfill|1|old\ninsert|2|\ndelete|2|\n");
    let trimmed = lab
        .store
        .trim(&feed, std::time::Duration::ZERO.into(), 1)
        .await
        .unwrap();
    assert_eq!(trimmed.removed, 1);
    assert_eq!(page(0), "");
    let bounds = "select lowest > 0, highest from changefeed_bounds;";
    assert_eq!(lab.shell(bounds).unwrap(), "1|2000000000000002\n");
}
