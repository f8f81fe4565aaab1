//! Feeds made from tables.

use changefeed_core::{FeedStore, Kind, NewFeed, ShardValue, Source, TableName, shard_of};
use changefeed_sqlite::rusqlite::types::Value;

use crate::support::{Lab, captured, named};

#[tokio::test]
async fn the_stock_shell_writes_to_a_captured_table() {
    let lab = Lab::new().await;
    lab.shell("create table orders (id integer primary key, customer text, total real);")
        .unwrap();
    let feed = lab.captured("orders", Some("customer"), 4).await;
    lab.shell(
        "insert into orders values (1, 'alice', 1.5), (2, 'bob', 2);
         update orders set total = 3 where id = 1;
         insert into orders values (3, 'carol', 9);
         delete from orders where id = 3;",
    )
    .unwrap();
    let mut seen = Vec::new();
    for shard in 0..4 {
        for (key, row) in lab
            .keys(&feed, shard)
            .iter()
            .zip(lab.rows(&feed, shard).await)
        {
            seen.push((shard, key.clone(), row));
        }
    }
    seen.sort();
    let row = |name: &str, key: &str, row: &str| {
        let shard = shard_of(ShardValue::Text(name), 4);
        (shard, key.to_owned(), row.to_owned())
    };
    let alice = "{\"id\":1,\"customer\":\"alice\",\"total\":3.0}";
    let mut expected = [
        row("alice", "1", alice),
        row("alice", "1", alice),
        row("bob", "2", "{\"id\":2,\"customer\":\"bob\",\"total\":2.0}"),
        row("carol", "3", "gone"),
        row("carol", "3", "gone"),
    ];
    expected.sort();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn tables_and_columns_may_have_any_name() {
    for (n, table) in [
        "order",
        "weird]name",
        "UPPER case",
        "a\"b",
        "new",
        "{table}",
        "ta'b",
    ]
    .into_iter()
    .enumerate()
    {
        let lab = Lab::new().await;
        let app = lab.app();
        let quoted = format!("\"{}\"", table.replace('"', "\"\""));
        for (key, other) in [
            ("select", "o\"ld"),
            ("K]ey {keys}", "shard"),
            ("old", "new"),
        ] {
            let column = |c: &str| format!("\"{}\"", c.replace('"', "\"\""));
            app.execute_batch(&format!(
                "drop table if exists {quoted};
                 create table {quoted} ({} text primary key, {} integer unique)",
                column(key),
                column(other)
            ))
            .unwrap();
            let feed = lab
                .create(NewFeed {
                    shards: 3,
                    source: Some(Source::Captured {
                        table: TableName::unqualified(table),
                        shard_by: Some(other.to_owned()),
                        images: false,
                        when: None,
                        columns: None,
                    }),
                    ..named(&format!("f{n}-{}", key.len()))
                })
                .await;
            app.execute_batch(&format!("insert into {quoted} values ('x', 4)"))
                .unwrap();
            app.execute_batch(&format!("update {quoted} set {} = 5", column(other)))
                .unwrap();
            let key = serde_json_key(key);
            let other = serde_json_key(other);
            let row = format!("{{{key}:\"x\",{other}:5}}");
            assert_eq!(
                lab.rows(&feed, 1).await,
                [row.clone(), "gone".to_owned()],
                "{table}"
            );
            assert_eq!(lab.rows(&feed, 2).await, [row], "{table}");
            let step = lab.store.backfill(&feed, 10).await.unwrap();
            assert_eq!((step.added, step.finished), (1, true));
            lab.store.drop_feed(&feed).await.unwrap();
            app.execute_batch(&format!("delete from {quoted}")).unwrap();
        }
    }
}

fn serde_json_key(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\\\""))
}

#[tokio::test]
async fn keys_of_every_type_find_their_row_again() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table t (a, b, v text, primary key (a, b)) without rowid;
         create table r (k real primary key, v text);
         create table n (k text collate nocase primary key, v text);",
    )
    .unwrap();
    let t = lab.captured("t", None, 1).await;
    let r = lab
        .create(NewFeed {
            name: "r".parse().unwrap(),
            ..captured("r", None, 1)
        })
        .await;
    let n = lab
        .create(NewFeed {
            name: "n".parse().unwrap(),
            ..captured("n", None, 1)
        })
        .await;
    let keys = [
        Value::Integer(i64::MAX),
        Value::Integer(-1),
        Value::Real(0.1 + 0.2),
        Value::Real(f64::INFINITY),
        Value::Real(5e-324),
        Value::Text("it's \"quoted\" \u{1F980}".to_owned()),
        Value::Text(String::new()),
        Value::Text("1".to_owned()),
        Value::Blob(vec![0, 255, 39]),
        Value::Blob(Vec::new()),
    ];
    for a in &keys {
        for b in &keys {
            app.execute("insert into t values (?1, ?2, 'v')", [a, b])
                .unwrap();
        }
    }
    let rows = lab.rows(&t, 0).await;
    assert_eq!(rows.len(), keys.len() * keys.len());
    assert!(
        rows.iter().all(|row| row.ends_with(",\"v\":\"v\"}")),
        "{rows:?}"
    );
    assert_eq!(
        rows[0],
        "{\"a\":9223372036854775807,\"b\":9223372036854775807,\"v\":\"v\"}"
    );
    for real in [0.1 + 0.2, 1e300, 3.0] {
        app.execute("insert into r values (?1, 'v')", [real])
            .unwrap();
    }
    assert_eq!(
        lab.rows(&r, 0).await[0],
        "{\"k\":0.30000000000000004,\"v\":\"v\"}"
    );
    assert!(!lab.rows(&r, 0).await.contains(&"gone".to_owned()));
    app.execute_batch("insert into n values ('Abc', 'v'); update n set k = 'aBC'")
        .unwrap();
    // To a reader these are two keys.
    let row = "{\"k\":\"aBC\",\"v\":\"v\"}";
    assert_eq!(lab.rows(&n, 0).await, [row, "gone", row]);
}

#[tokio::test]
async fn an_update_of_the_key_is_a_change_of_both_keys() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (a integer, b text, v, primary key (a, b))")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    app.execute_batch(
        "insert into t values (1, 'x', 0); update t set a = 2; update t set v = 1, b = 'x'",
    )
    .unwrap();
    assert_eq!(
        lab.rows(&feed, 0).await,
        [
            "gone",
            "gone",
            "{\"a\":2,\"b\":\"x\",\"v\":1}",
            "{\"a\":2,\"b\":\"x\",\"v\":1}"
        ]
    );
    assert_eq!(lab.keys(&feed, 0), ["1", "1", "2", "2"]);
}

#[tokio::test]
async fn a_row_that_moves_to_another_shard_is_a_change_in_both() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, tenant integer)")
        .unwrap();
    let feed = lab.captured("t", Some("tenant"), 2).await;
    app.execute_batch(
        "insert into t values (1, 0); update t set tenant = 1; update t set tenant = 3;
         insert or replace into t values (1, 4); delete from t;",
    )
    .unwrap();
    // Inserted, left; came back, deleted.
    assert_eq!(lab.keys(&feed, 0), ["1", "1", "1", "1"]);
    // Came, changed, left.
    assert_eq!(lab.keys(&feed, 1), ["1", "1", "1"]);
    assert_eq!(lab.rows(&feed, 1).await, ["gone"; 3]);
}

#[tokio::test]
async fn several_feeds_from_one_table() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, v text unique)")
        .unwrap();
    let one = lab.captured("t", None, 1).await;
    let two = lab.captured("t", Some("id"), 2).await;
    app.execute_batch("insert into t values (1, 'a'), (2, 'b')")
        .unwrap();
    assert_eq!(lab.keys(&one, 0), ["1", "2"]);
    assert_eq!(lab.keys(&two, 0), ["2"]);
    assert_eq!(lab.keys(&two, 1), ["1"]);
    lab.store.drop_feed(&one).await.unwrap();
    app.execute_batch("insert into t values (3, 'c')").unwrap();
    assert_eq!(lab.keys(&two, 1), ["1", "3"]);
}

#[tokio::test]
async fn what_cannot_be_captured_is_refused_and_nothing_is_made() {
    let lab = Lab::new().await;
    lab.app()
        .execute_batch(
            "create table t (id integer primary key, v);
             create view vw as select * from t;
             create table nokey (a, b);
             create table wide (a, b, c, d, e, f, g, h, i, primary key (a, b, c, d, e, f, g, h, i));
             create virtual table vt using fts5(x);",
        )
        .unwrap();
    for (table, kind, sentence) in [
        ("missing", Kind::NotFound, "there is no table missing"),
        (
            "vw",
            Kind::Invalid,
            "vw is a view; changes can only be captured from a table",
        ),
        (
            "vt",
            Kind::Invalid,
            "vt is a virtual table; changes can only be captured from a table",
        ),
        (
            "nokey",
            Kind::Invalid,
            "table nokey has no primary key, so its changes could not be told apart",
        ),
        (
            "wide",
            Kind::Invalid,
            "the primary key of table wide has 9 columns; at most 8 can be captured",
        ),
        (
            "changefeed_lease",
            Kind::Invalid,
            "changefeed_lease is one of changefeed's own tables",
        ),
    ] {
        let error = lab
            .store
            .create_feed(&captured(table, None, 1))
            .await
            .unwrap_err();
        assert_eq!((error.kind(), error.message()), (kind, sentence));
    }
    let other_schema = NewFeed {
        source: Some(Source::captured(TableName::qualified("temp", "t"))),
        ..named("f")
    };
    let error = lab.store.create_feed(&other_schema).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let error = lab
        .store
        .create_feed(&captured("t", Some("nope"), 2))
        .await
        .unwrap_err();
    assert_eq!(error.message(), "table t has no column 'nope'");
    assert_eq!(error.advice(), Some("its columns are id, v"));
    assert!(lab.store.feeds().await.unwrap().is_empty());
    let main = NewFeed {
        source: Some(Source::Captured {
            table: TableName::qualified("main", "T"),
            shard_by: Some("V".to_owned()),
            images: false,
            when: None,
            columns: None,
        }),
        ..named("f")
    };
    let made = lab.create(main).await;
    assert_eq!(lab.store.feeds().await.unwrap(), [made]);
}

#[tokio::test]
async fn shards_in_triggers_are_those_of_the_core() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, k)")
        .unwrap();
    let feed = lab.captured("t", Some("k"), 5).await;
    let mut expected = vec![Vec::new(); 5];
    for id in 0..200i64 {
        let (value, shard) = match id % 4 {
            0 => (Value::Null, shard_of(ShardValue::Null, 5)),
            1 => (Value::Integer(-id), shard_of(ShardValue::Integer(-id), 5)),
            2 => {
                let text = format!("customer-{id}-ç");
                let shard = shard_of(ShardValue::Text(&text), 5);
                (Value::Text(text), shard)
            }
            _ => {
                let text = "x".repeat(usize::try_from(id).unwrap() * 3);
                let shard = shard_of(ShardValue::Text(&text), 5);
                (Value::Text(text), shard)
            }
        };
        app.execute("insert into t values (?1, ?2)", (id, value))
            .unwrap();
        expected[usize::try_from(shard).unwrap()].push(id.to_string());
    }
    for shard in 0..5 {
        assert_eq!(
            lab.keys(&feed, shard),
            expected[usize::try_from(shard).unwrap()]
        );
    }
}

#[tokio::test]
async fn foreign_key_actions_and_truncating_deletes_are_captured() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "pragma foreign_keys = on;
         create table parent (id integer primary key);
         create table t (id integer primary key, p integer references parent on delete cascade);
         insert into parent values (1); insert into t values (1, 1), (2, 1), (3, null);",
    )
    .unwrap();
    let feed = lab.captured("t", None, 1).await;
    app.execute_batch("delete from parent; delete from t")
        .unwrap();
    assert_eq!(lab.keys(&feed, 0), ["1", "2", "3"]);
    assert_eq!(lab.rows(&feed, 0).await, ["gone"; 3]);
}

#[tokio::test]
async fn a_feed_deleted_by_sql_does_not_break_the_applications_writes() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, u unique)")
        .unwrap();
    let feed = lab.captured("t", Some("u"), 2).await;
    app.execute_batch(&format!(
        "delete from changefeed_feed where feed_id = {}",
        feed.id
    ))
    .unwrap();
    let write = "insert into t values (1, 1); update t set u = 2; \
                 insert or replace into t values (2, 2); delete from t;";
    app.execute_batch(write).unwrap();
    // A new feed with the same number is not filled by the old triggers.
    let again = lab
        .create(changefeed_core::NewFeed {
            id: Some(feed.id),
            ..named("again")
        })
        .await;
    app.execute_batch(write).unwrap();
    assert!(lab.numbers(&again, 0).await.is_empty());
    // A shard that is missing from a feed that is there is a mistake to be told.
    let broken = lab.captured("t", None, 1).await;
    app.execute_batch(&format!(
        "delete from changefeed_shard where feed_id = {}",
        broken.id
    ))
    .unwrap();
    let refused = app.execute_batch("insert into t values (1, 1)");
    assert!(refused.unwrap_err().to_string().contains("lost a shard"));
    app.execute_batch(&format!(
        "delete from changefeed_feed where feed_id = {}",
        broken.id
    ))
    .unwrap();
    changefeed_core::SchemaStore::uninstall(&lab.store)
        .await
        .unwrap();
    app.execute_batch(write).unwrap();
}
