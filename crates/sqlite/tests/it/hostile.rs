//! What the owner of a file may put into it, and what a writer's settings may be: neither leads our
//! process or our triggers astray.

use changefeed_core::{After, FeedStore, Kind, ShardId};

use crate::event_support::everything;
use crate::support::Lab;

/// A trigger in the file speaks of the tables in the file, whatever the writer's own are called.
#[tokio::test]
async fn temporary_tables_and_attached_files_shadow_nothing() {
    let lab = Lab::new().await;
    lab.shell("create table t (id integer primary key, u unique);")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    lab.trigger(&everything("t")).await;
    lab.shell(
        "create temp table changefeed_staged (owner, batch, at, live);
         create temp table changefeed_change_id (value); create temp table changefeed_event (x);
         create temp table changefeed_numbered (feed_id); create temp table changefeed_captured (x);
         attach ':memory:' as other; create table other.changefeed_change_id (value);
         create table other.t (id, u);
         insert into t values (1, 'a'); insert or replace into t values (2, 'a');",
    )
    .unwrap();
    assert_eq!(lab.keys(&feed, 0), ["1", "1", "2"]);
    assert_eq!(lab.events().await.len(), 3);
}

#[tokio::test]
async fn a_view_in_place_of_a_captured_table_is_not_read() {
    let lab = Lab::new().await;
    lab.shell("create table t (id integer primary key, a);")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    lab.shell(
        "insert into t values (1, 'a'); drop table t; create view t as select 1 as id, 'b' as a;",
    )
    .unwrap();
    let read = lab.store.read(&feed, ShardId(0), After::First, 10).await;
    let refused = read.unwrap_err();
    assert_eq!(refused.kind(), Kind::NotFound, "{refused}");
}

#[tokio::test]
async fn views_of_the_file_cannot_call_what_is_not_harmless() {
    let lab = Lab::new().await;
    lab.shell("create table v (change_id, x);").unwrap();
    let feed = lab.joined("v").await;
    lab.shell(
        "insert into changefeed_change (feed_id, shard, change_id) values (1, 0, 1); drop table v;
         create view v (change_id, x) as select 1, fts3_tokenizer('simple');",
    )
    .unwrap();
    let read = lab.store.read(&feed, ShardId(0), After::First, 10).await;
    let refused = read.unwrap_err();
    assert!(refused.to_string().contains("unsafe use"), "{refused}");
}

/// One value, one shard: whoever writes it, with whatever version and settings.
#[tokio::test]
async fn a_value_has_one_shard_whoever_writes_it() {
    let lab = Lab::new().await;
    lab.shell("create table t (id integer primary key, v);")
        .unwrap();
    let feed = lab.captured("t", Some("v"), 7).await;
    let values = [
        "0.1 + 0.2",
        "1e15 + 0.3",
        "4.9e-324",
        "1.7976931348623157e308",
        "-1.5e19",
        "9e999",
        "123456789012345.678",
        "2.0 / 3",
        "100.0",
        "-0.5",
        "9007199254740993.0",
        "'Straße'",
        "'a' || char(0) || 'b'",
        "x'00ff'",
        "'1.5'",
        "-9223372036854775808",
        "null",
        "1e100 / 3",
        "5e-5",
        "3.0e-310",
        "'like'",
        "'LIKE'",
    ];
    let mut shards = Vec::new();
    for (n, settings) in [
        "",
        "pragma case_sensitive_like = on; pragma reverse_unordered_selects = on;",
    ]
    .iter()
    .enumerate()
    {
        let rows: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(i, value)| format!("({}, {value})", 1000 * n + i))
            .collect();
        let insert = format!("{settings} insert into t values {};", rows.join(", "));
        lab.shell(&insert).unwrap();
        shards.push(lab.shell(&placed(feed.id.0, 1000 * n)).unwrap());
        // The very same values, by our library.
        let app = lab.app();
        app.execute_batch(&format!(
            "{settings} insert into t select id + 500, v from t where id between {} and {}",
            1000 * n,
            1000 * n + 499
        ))
        .unwrap();
        shards.push(lab.shell(&placed(feed.id.0, 1000 * n + 500)).unwrap());
    }
    assert!(shards.iter().all(|s| *s == shards[0]), "{shards:?}");
}

fn placed(feed: i16, from: usize) -> String {
    format!(
        "select (key1 - {from}) || ' ' || shard from changefeed_numbered where feed_id = {feed} \
         and key1 between {from} and {from} + 499 order by key1;"
    )
}
