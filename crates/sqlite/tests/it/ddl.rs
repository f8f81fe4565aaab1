//! No statement that alters a captured table fails a later write, also for connections that are open
//! with prepared statements; and what is written afterwards is captured, at the latest after a refresh.

use changefeed_core::{
    Capture, SchemaStore, TableName, Take, TriggerStore, WatchSettings, WatchSpec, WatchStore,
};

use crate::event_support::everything;
use crate::support::Lab;

const DDL: [&str; 17] = [
    "alter table t add column z default 5",
    "alter table t add column z2 text not null default 'q'",
    "alter table t add column z3 as (a + 1) virtual",
    "alter table t rename column a to aa",
    "alter table t rename column id to key",
    "alter table t rename column b to \"new\"",
    "alter table t rename to tt",
    "create unique index later on t (b)",
    "create unique index later on t (lower(b)) where a > 0",
    "drop index by_a",
    "drop index by_b",
    "create index plain on t (a)",
    "create trigger app after insert on t begin update t set c = 1 where rowid = new.rowid; end",
    "create trigger app before insert on t begin delete from t where a = 77; end",
    "create view v as select * from t",
    "vacuum",
    "drop trigger there",
];

const TABLE: &str = "create table t (id integer primary key, a integer, b text, c);
    create unique index by_a on t (a, abs(a));
    create unique index by_b on t (lower(b)) where c is null;
    create trigger there after delete on t begin select 1; end;
    insert into t values (1, 1, 'x', null), (2, 2, 'y', null);";

#[tokio::test]
async fn no_alteration_fails_a_later_write() {
    for ddl in DDL {
        let lab = Lab::new().await;
        lab.shell(TABLE).unwrap();
        let feed = lab.captured("t", Some("a"), 3).await;
        let mut definition = everything("t");
        definition.capture = Capture {
            condition: Some("new.id is not 99 and old.id is not 99".into()),
            ..definition.capture
        };
        lab.trigger(&definition).await;
        let spec = WatchSpec::new("f".parse().unwrap(), TableName::unqualified("t"));
        let watch = lab.store.open_watch(&spec).await.unwrap();

        let open = lab.app();
        let mut writes = [
            "insert into t values (3, 3, 'z', null)",
            "update t set id = id",
            "delete from t where id = 2",
            "replace into t values (4, 1, 'x', null)",
        ]
        .map(|sql| open.prepare(sql).unwrap());
        lab.shell(&format!("{ddl};"))
            .unwrap_or_else(|e| panic!("{ddl}: {e}"));
        // A statement that no longer means anything fails by itself; none fails by a trigger of ours.
        for write in &mut writes {
            if let Err(error) = write.execute([]) {
                let said = error.to_string();
                assert!(!said.contains("changefeed"), "{ddl}: {said}");
                assert!(
                    ["rename", "add column"]
                        .iter()
                        .any(|word| ddl.contains(word)),
                    "{ddl}: {said}"
                );
            }
        }
        let table = if ddl.ends_with("to tt") { "tt" } else { "t" };
        let columns = "rowid, ".to_owned()
            + match ddl {
                "alter table t rename column a to aa" => "aa",
                _ => "a",
            };
        for round in 0..2 {
            lab.shell(&format!(
                "insert or replace into {table} ({columns}) values ({0}, {0}); \
                 replace into {table} ({columns}) values ({1}, {0}); \
                 update {table} set rowid = {2} where rowid = {1}; \
                 delete from {table} where rowid = {2};",
                100 + round,
                200 + round,
                300 + round
            ))
            .unwrap_or_else(|e| panic!("{ddl}: {e}"));
            lab.store.refresh_triggers().await.unwrap();
        }
        // All three have seen the last rows.
        let events = lab.events().await;
        assert!(
            events
                .iter()
                .any(|e| e.starts_with("DELETE") && e.contains(":301,")),
            "{ddl}: {events:?}"
        );
        let keys: Vec<String> = (0..3).flat_map(|shard| lab.keys(&feed, shard)).collect();
        for key in ["101", "201", "301"] {
            assert!(keys.iter().any(|k| k == key), "{ddl}: {keys:?}");
        }
        let settings = WatchSettings::default();
        let take = Take {
            owner: "me",
            settings: &settings,
        };
        assert!(
            lab.store.take(&watch, take).await.unwrap().is_some(),
            "{ddl}"
        );
        let problems: Vec<_> = lab
            .store
            .capture_findings()
            .await
            .unwrap()
            .into_iter()
            .filter(|f| f.severity == changefeed_core::Severity::Problem)
            // The condition names the column by its old name; it goes on as it was.
            .filter(|f| !(ddl.contains("column id") && f.message.contains("no column 'id'")))
            .collect();
        assert!(problems.is_empty(), "{ddl}: {problems:?}");
        assert!(lab.store.schema().await.is_ok());
    }
}

/// The twelve steps of SQLite's documentation: our triggers go with the old table, and come back.
#[tokio::test]
async fn a_rebuilt_table_is_captured_again_after_a_refresh() {
    let lab = Lab::new().await;
    lab.shell(TABLE).unwrap();
    let feed = lab.captured("t", None, 1).await;
    let before = lab.keys(&feed, 0).len();
    lab.shell(
        "begin; create table t2 (id integer primary key, a integer, b text, c, d);
         insert into t2 select *, 1 from t; drop table t; alter table t2 rename to t; commit;
         insert into t (id) values (50);",
    )
    .unwrap();
    let found = lab.store.capture_findings().await.unwrap();
    assert!(
        found.iter().any(|f| f.message.contains("missing")),
        "{found:?}"
    );
    let said = lab.store.refresh_triggers().await.unwrap();
    assert!(
        said.iter().any(|f| f.message.contains("made again")),
        "{said:?}"
    );
    assert!(lab.store.refresh_triggers().await.unwrap().is_empty());
    lab.shell("insert into t (id) values (51);").unwrap();
    let keys = lab.keys(&feed, 0);
    assert_eq!(keys[before..].last().map(String::as_str), Some("51"));
}

/// A column that a trigger of ours names: the refusal, and the way that the documentation shows.
#[tokio::test]
async fn a_column_is_dropped_with_the_triggers_in_one_transaction() {
    let lab = Lab::new().await;
    lab.shell(TABLE).unwrap();
    let feed = lab.captured("t", None, 1).await;
    // No trigger of a feed names it.
    lab.shell("alter table t add column d; alter table t drop column d;")
        .unwrap();
    lab.trigger(&everything("t")).await;
    lab.shell("alter table t add column d;").unwrap();
    lab.store.refresh_triggers().await.unwrap();
    let refused = lab.shell("alter table t drop column d;").unwrap_err();
    assert!(refused.contains("changefeed_event_1"), "{refused}");
    let drops = lab
        .shell(
            "select 'drop trigger \"' || name || '\";' from sqlite_master
              where type = 'trigger' and tbl_name = 't' and name glob 'changefeed_*';",
        )
        .unwrap();
    lab.shell(&format!(
        "begin immediate; {drops} alter table t drop column d; commit;"
    ))
    .unwrap();
    lab.store.refresh_triggers().await.unwrap();
    lab.shell("replace into t values (60, 1, 'x', null);")
        .unwrap();
    assert_eq!(lab.keys(&feed, 0).last().map(String::as_str), Some("60"));
    let events = lab.events().await;
    assert!(events.last().unwrap().starts_with("INSERT"), "{events:?}");
    assert!(events[0].starts_with("DELETE {\"id\":1"), "{events:?}");
}
