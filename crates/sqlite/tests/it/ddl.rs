//! No statement that alters a captured table fails a later write, also for connections that are open
//! with prepared statements; and what is written afterwards is captured, at the latest after a refresh.

use changefeed_core::{
    After, Capture, FeedStore, NewFeed, SchemaStore, ShardId, Source, TableName, Take,
    TriggerStore, WatchSettings, WatchSpec, WatchStore,
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

/// Inserts were lost, and `doctor` merely spoke of an alteration.
#[tokio::test]
async fn a_feed_that_has_lost_one_of_its_triggers_is_a_problem_and_mended() {
    let lab = Lab::new().await;
    lab.shell("create table t (id integer primary key, s)")
        .unwrap();
    let feed = lab.captured("t", Some("s"), 3).await;
    let found = async || -> Vec<changefeed_core::Severity> {
        let findings = lab.store.capture_findings().await.unwrap();
        findings.iter().map(|f| f.severity).collect()
    };
    lab.shell(&format!("drop trigger changefeed_{}_insert", feed.id))
        .unwrap();
    assert_eq!(found().await, [changefeed_core::Severity::Problem]);
    lab.store.refresh_triggers().await.unwrap();
    assert_eq!(found().await, []);
    // This one goes on, but cannot be recreated.
    lab.shell("alter table t rename column s to s2").unwrap();
    assert_eq!(found().await, [changefeed_core::Severity::Warning]);
}

/// The values of the new key were read under the names of the old one, and the other way round.
#[tokio::test]
async fn a_table_that_was_rebuilt_with_another_key_is_noticed_and_never_mixed_up() {
    let lab = Lab::new().await;
    lab.shell("create table t (a integer primary key, b integer not null)")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    lab.shell("insert into t values (1, 10)").unwrap();
    let rebuild = |key: &str| {
        lab.shell(&format!(
            "begin; create table n (a integer not null, b integer not null, c, primary key ({key}));
             insert into n select a, b, 0 from t; drop table t; alter table n rename to t; commit"
        ))
        .unwrap();
    };
    let problems = async || -> Vec<String> {
        let findings = lab.store.capture_findings().await.unwrap();
        let bad = findings
            .iter()
            .filter(|f| f.severity == changefeed_core::Severity::Problem);
        bad.map(|f| f.message.clone()).collect()
    };
    // With the same key it goes on, also if its name was changed before.
    lab.shell("alter table t rename column a to a2; alter table t rename column a2 to a")
        .unwrap();
    rebuild("a");
    lab.store.refresh_triggers().await.unwrap();
    assert_eq!(problems().await, [""; 0]);
    lab.shell("insert into t values (2, 20, 0)").unwrap();
    let keys = |page: &changefeed_core::Page| -> Vec<String> {
        let key = |c: &changefeed_core::Change| c.key.as_ref().unwrap().get().to_owned();
        page.changes.iter().map(key).collect()
    };
    let read = async || lab.store.read(&feed, ShardId(0), After::First, 10).await;
    assert_eq!(keys(&read().await.unwrap()), [r#"{"a":1}"#, r#"{"a":2}"#]);

    rebuild("b");
    for _ in 0..2 {
        let found = problems().await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("is (b) now"), "{found:?}");
        let refused = read().await.unwrap_err();
        assert!(refused.message().contains("by (a)"), "{refused:?}");
        assert_eq!(lab.store.refresh_triggers().await.unwrap(), []);
        lab.shell("insert into t values (3, 30, 0) on conflict do nothing")
            .unwrap();
    }
    rebuild("a");
    lab.shell("alter table t rename column a to id").unwrap();
    let told = problems().await;
    assert!(told[0].contains("is (id) now"), "{told:?}");
    lab.shell("alter table t rename column id to a").unwrap();
    lab.store.refresh_triggers().await.unwrap();
    assert_eq!(problems().await, [""; 0]);
    assert_eq!(read().await.unwrap().changes.len(), 2);
    // A key that is renamed while there are triggers is still the key.
    lab.shell("alter table t rename column a to id").unwrap();
    lab.store.refresh_triggers().await.unwrap();
    rebuild_renamed(&lab);
    lab.store.refresh_triggers().await.unwrap();
    assert_eq!(problems().await, [""; 0]);
    assert_eq!(keys(&read().await.unwrap()), [r#"{"id":1}"#, r#"{"id":2}"#]);
}

fn rebuild_renamed(lab: &Lab) {
    lab.shell(
        "create table n (id integer primary key, b); insert into n select id, b from t; \
         drop table t; alter table n rename to t",
    )
    .unwrap();
}

/// SQLite follows the rename in our triggers; they cannot be recreated from what was written.
#[tokio::test]
async fn a_filter_whose_column_was_renamed_goes_on() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, state text)")
        .unwrap();
    let mut new = NewFeed::captured("t").unwrap();
    if let Some(Source::Captured { when, .. }) = &mut new.source {
        *when = Some("state = 'in'".to_owned());
    }
    let feed = lab.store.create_feed(&new).await.unwrap();
    app.execute_batch(
        "alter table t rename column state to phase;
         insert into t values (1, 'in'), (2, 'out')",
    )
    .unwrap();
    lab.store.refresh_triggers().await.unwrap();
    app.execute_batch("insert into t values (3, 'out')")
        .unwrap();
    assert_eq!(lab.page(&feed, 0, After::First, 10).await.changes.len(), 1);
    let findings = lab.store.capture_findings().await.unwrap();
    let told = |f: &changefeed_core::Finding| f.message.contains("cannot be recreated");
    assert!(findings.iter().any(told), "{findings:?}");
}
