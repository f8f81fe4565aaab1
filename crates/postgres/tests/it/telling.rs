//! What captured changes tell: key, operation and images, whatever the table and its triggers do.

use std::sync::Arc;

use changefeed_core::{
    After, Change, Content, Cursor, FeedBinding, NewFeed, Op, Severity, ShardId, Source,
    SweepGroup, TableName,
};
use changefeed_testkit::backend::{Backend, PostgresBackend, captured, read_all, settle};
use changefeed_testkit::events::everything;
use changefeed_testkit::run;

const GROUP: SweepGroup = SweepGroup(0);

async fn fresh() -> Arc<dyn Backend> {
    Arc::new(PostgresBackend::fresh().await)
}

/// A trigger that writes to its own table while a statement of many rows is at work.
const NESTED: &str = "create function others() returns trigger language plpgsql as $$ begin \
       if pg_trigger_depth() > 1 then return null; end if; \
       update t set n = n + 10 where id > new.id; \
       update t set id = -id where id = new.id + 1; \
       delete from t where id = new.id + 2; \
       return null; end $$; \
     create trigger others after insert on t for each row execute function others()";

fn with_images(table: &str) -> NewFeed {
    let mut new = captured(table, TableName::unqualified(table), None, 1);
    assert!(new.source.as_mut().unwrap().keep_images(true));
    new
}

/// All rows are gone at once, and readers of every shard have to know.
#[test]
fn a_truncated_table_is_one_change_per_shard() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table part (id int primary key, k int) partition by range (id)")
            .await;
        app.run("create table part_1 partition of part for values from (0) to (100)")
            .await;
        app.run("create table plain (id int primary key, k int, p int references plain)")
            .await;
        for table in ["part", "plain"] {
            let new = captured(table, TableName::unqualified(table), Some("k"), 3);
            let feed = store.create_feed(&new).await.unwrap();
            app.run(&format!("insert into {table} values (1, 1), (2, 2)"))
                .await;
            app.run(&format!("begin; truncate {table}; rollback")).await;
            app.run(&format!("truncate {table} cascade")).await;
            app.run(&format!("insert into {table} values (4, 1)")).await;
            settle(&*store, GROUP).await;
            let mut told = Vec::new();
            for shard in 0..3 {
                for change in read_all(&*store, &feed, shard, 100).await {
                    let key = change.key.as_ref().map_or("-", |key| key.get());
                    let row = change.content.row().is_some();
                    told.push(format!(
                        "{shard} {} {key} {row}",
                        change.op.unwrap().as_str()
                    ));
                }
            }
            let expected = [
                "0 truncate - false",
                "1 insert {\"id\":1} false",
                "1 truncate - false",
                "1 insert {\"id\":4} true",
                "2 insert {\"id\":2} false",
                "2 truncate - false",
            ];
            assert_eq!(told, expected, "{table}");
        }
    });
}

/// Values of somebody's own types, keys that do not fit any more, and columns that were renamed: what was deleted is
/// told all the same.
#[test]
fn a_key_is_told_whatever_became_of_its_column() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create type mood as enum ('glad', 'sad'); create domain number as int check (value > 0)")
            .await;
        app.run(
            "create table t (m mood, d date, n number, x numeric(10,2), b bytea, note text, \
             primary key (m, d, n, x, b))",
        )
        .await;
        let new = captured("t", TableName::unqualified("t"), None, 1);
        let feed = store.create_feed(&new).await.unwrap();
        app.run("insert into t values ('glad', '2026-02-03', 5, 1.5, '\\x00ff', 'a')")
            .await;
        app.run("delete from t").await;
        let keys = async || -> Vec<String> {
            settle(&*store, GROUP).await;
            let changes = read_all(&*store, &feed, 0, 100).await;
            let key = |c: &Change| c.key.as_ref().unwrap().get().to_owned();
            changes.iter().map(key).collect()
        };
        let key = r#"{"m":"glad","d":"2026-02-03","n":5,"x":1.50,"b":"\\x00ff"}"#;
        assert_eq!(keys().await, [key, key]);
        app.run("alter table t rename n to \"Number\"").await;
        let renamed = key.replace("\"n\"", "\"Number\"");
        assert_eq!(keys().await, [renamed.as_str(), &renamed]);

        app.run("create table u (id text primary key)").await;
        let new = captured("u", TableName::unqualified("u"), None, 1);
        let feed = store.create_feed(&new).await.unwrap();
        app.run(
            "insert into u values ('7'); insert into u values ('x'); delete from u where id = 'x'",
        )
        .await;
        app.run("alter table u alter id type int using id::int")
            .await;
        settle(&*store, GROUP).await;
        let delete = store
            .read(
                &feed,
                ShardId(0),
                After::Cursor(Cursor::Number(2_000_000_000_000_002)),
                10,
            )
            .await
            .unwrap();
        let [delete] = &delete.changes[..] else {
            panic!("{delete:?}");
        };
        assert_eq!(delete.key.as_ref().unwrap().get(), r#"{"id":"x"}"#);
        assert_eq!(delete.op, Some(Op::Delete));
    });
}

/// They are kept by us. And what a trigger of the application writes to the same table comes after what it followed,
/// although the server fires our triggers the other way round.
#[test]
fn images_outlive_their_table_and_follow_nested_writes() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table t (id int primary key, n int)").await;
        let feed = store.create_feed(&with_images("t")).await.unwrap();
        app.run(NESTED).await;
        app.run("insert into t select i, i from generate_series(1, 6) i")
            .await;
        settle(&*store, GROUP).await;
        let mut copy = std::collections::BTreeMap::new();
        for change in read_all(&*store, &feed, 0, 100).await {
            let Content::Images { old, new } = &change.content else {
                panic!("{change:?}");
            };
            let text = |row: &Option<Box<serde_json::value::RawValue>>| {
                row.as_ref().map(|row| row.get().to_owned())
            };
            let key = change.key.as_ref().unwrap().get().to_owned();
            assert_eq!(copy.remove(&key), text(old), "{:?} {key}", change.op);
            if let Some(new) = text(new) {
                copy.insert(key, new);
            }
        }
        let mut copied: Vec<String> = copy.into_values().collect();
        copied.sort_unstable();
        let table = app
            .query("select row_to_json(t)::text from t")
            .await
            .unwrap();
        let mut table: Vec<String> = table.into_iter().flatten().flatten().collect();
        table.sort_unstable();
        assert_eq!(copied, table);
        let before = read_all(&*store, &feed, 0, 100).await.len();
        app.run("drop table t").await;
        assert_eq!(read_all(&*store, &feed, 0, 100).await.len(), before);
    });
}

/// A column that is added later is in the images, whoever writes, and no write fails.
#[test]
fn images_follow_altered_tables() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run(
            "create type mood as enum ('glad', 'sad'); create table t (id int primary key, n int)",
        )
        .await;
        let feed = store.create_feed(&with_images("t")).await.unwrap();
        app.run("insert into t values (1, 1)").await;
        app.run("alter table t add m mood default 'sad', drop n")
            .await;
        app.run("update t set m = 'glad'").await;
        app.run("alter table t rename m to \"Mood\"").await;
        app.run("delete from t").await;
        settle(&*store, GROUP).await;
        let told: Vec<String> = read_all(&*store, &feed, 0, 100)
            .await
            .iter()
            .map(|change| {
                let mut text = String::new();
                change.write_json(&mut text);
                text.split_once("\"op\"").unwrap().1.to_owned()
            })
            .collect();
        assert_eq!(
            told,
            [
                r#":"insert","key":{"id":1},"old":null,"new":{"id":1,"n":1},"row":{"id":1,"n":1}"#,
                r#":"update","key":{"id":1},"old":{"id":1,"m":"sad"},"new":{"id":1,"m":"glad"},"changed":["m"],"row":{"id":1,"m":"glad"}"#,
                r#":"delete","key":{"id":1},"old":{"id":1,"Mood":"glad"},"new":null,"row":null"#,
            ]
        );
    });
}

/// The number of one event was entered twice, and that of another never.
#[test]
fn events_of_nested_writes_are_all_in_their_feed() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table t (id int primary key, n int)").await;
        let feed = store
            .create_feed(&NewFeed::new("f".parse().unwrap()))
            .await
            .unwrap();
        let mut all = everything("all", "t");
        all.capture.feed = Some(FeedBinding {
            feed: feed.name.clone(),
            shard_by: None,
        });
        store.create_trigger(&all, false).await.unwrap();
        app.run(NESTED).await;
        app.run("insert into t select i, i from generate_series(1, 6) i")
            .await;
        settle(&*store, GROUP).await;
        let feed = store.feeds().await.unwrap().remove(0);
        let events = app
            .value(
                "select string_agg(change_id::text, ' ' order by change_id) from changefeed.event",
            )
            .await;
        let changes = read_all(&*store, &feed, 0, 100).await;
        let ids: Vec<String> = changes
            .iter()
            .map(|c| c.change_id.unwrap().to_string())
            .collect();
        assert_eq!(ids.join(" "), events);
        assert!(
            changes
                .iter()
                .all(|c| matches!(c.content, Content::Images { .. }))
        );
    });
}

/// By whoever may alter the table: nothing was captured any more, and nobody said so.
#[test]
fn a_feed_whose_triggers_are_gone_or_switched_off_is_noticed_and_mended() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table t (id int primary key, n int)").await;
        let feed = store.create_feed(&with_images("t")).await.unwrap();
        let problems = async || -> Vec<String> {
            let findings = store.capture_findings().await.unwrap();
            let bad = findings.iter().filter(|f| f.severity == Severity::Problem);
            bad.map(|f| format!("{}; {}", f.message, f.advice.clone().unwrap_or_default()))
                .collect()
        };
        assert_eq!(problems().await, [""; 0]);
        assert_eq!(store.refresh_triggers().await.unwrap(), []);

        app.run(r#"drop trigger "!changefeed_1" on t; alter table t disable trigger "!changefeed_1_truncate""#)
            .await;
        let found = problems().await;
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("is missing"), "{found:?}");
        assert!(
            found[1]
                .ends_with(r#"alter table "public"."t" enable trigger "!changefeed_1_truncate""#),
            "{found:?}"
        );
        let mended = store.refresh_triggers().await.unwrap();
        assert_eq!(mended[0].severity, Severity::Warning, "{mended:?}");
        // What somebody has switched off stays off.
        assert_eq!(problems().await.len(), 1);
        app.run(r#"alter table t enable trigger "!changefeed_1_truncate""#)
            .await;
        assert_eq!(problems().await, [""; 0]);

        app.run("alter table t add m text").await;
        let mended = store.refresh_triggers().await.unwrap();
        assert_eq!(mended[0].severity, Severity::Ok, "{mended:?}");
        assert_eq!(store.refresh_triggers().await.unwrap(), []);
        app.run("insert into t values (1, 2, 'x'); truncate t")
            .await;
        settle(&*store, GROUP).await;
        let ops: Vec<Option<Op>> = read_all(&*store, &feed, 0, 10)
            .await
            .iter()
            .map(|c| c.op)
            .collect();
        assert_eq!(ops, [Some(Op::Insert), Some(Op::Truncate)]);

        app.run("drop function changefeed.capture_1() cascade")
            .await;
        assert_eq!(problems().await.len(), 1);
        // Somebody is at it: nobody waits. Of two at once one does it, and the other finds it done.
        let holder = backend.session().await;
        holder
            .run("begin; select from changefeed.feed for update")
            .await;
        assert_eq!(store.refresh_triggers().await.unwrap(), []);
        holder.run("rollback").await;
        let other = backend.store().await;
        let (one, two) = tokio::join!(store.refresh_triggers(), other.refresh_triggers());
        let told = [one.unwrap(), two.unwrap()].concat();
        let severities: Vec<Severity> = told.iter().map(|f| f.severity).collect();
        assert_eq!(severities, [Severity::Warning], "{told:?}");
        assert_eq!(problems().await, [""; 0]);
    });
}

/// Two rows may have it for a while: a delete of the one read as a delete of the other.
#[test]
fn a_table_with_a_deferrable_key_is_refused() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table t (id int primary key deferrable)")
            .await;
        let refused = store.create_feed(&with_images("t")).await.unwrap_err();
        assert!(refused.message().contains("deferrable"), "{refused:?}");
        assert!(store.feeds().await.unwrap().is_empty());
    });
}

/// The values of the new key were written under the names of the old one.
#[test]
fn a_key_that_moved_is_noticed_and_never_mixed_up() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let app = backend.session().await;
        app.run("create table t (a int primary key, b int not null, s int)")
            .await;
        let mut new = with_images("t");
        new.shards = 2;
        new.source = Some(Source::Captured {
            table: TableName::unqualified("t"),
            shard_by: Some("s".to_owned()),
            images: true,
            when: None,
            columns: None,
        });
        let feed = store.create_feed(&new).await.unwrap();
        let findings = async || -> Vec<(Severity, String)> {
            let all = store.capture_findings().await.unwrap();
            let told =
                |f: &changefeed_core::Finding| !matches!(f.severity, Severity::Ok | Severity::Note);
            let bad = all.into_iter().filter(told);
            bad.map(|f| (f.severity, f.message)).collect()
        };
        app.run(
            "alter table t drop constraint t_pkey, add primary key (b), add unique (a), add z int",
        )
        .await;
        // The columns of then are unique still: they are its key.
        store.refresh_triggers().await.unwrap();
        assert_eq!(findings().await, []);
        app.run("insert into t values (1, 10, 0, 5)").await;
        app.run("alter table t drop constraint t_a_key, add y int, alter s drop not null")
            .await;
        assert_eq!(store.refresh_triggers().await.unwrap(), []);
        app.run("insert into t values (2, 20, 0, 6, 7)").await;
        settle(&*store, GROUP).await;
        let keys: Vec<String> = read_all(&*store, &feed, 0, 10)
            .await
            .iter()
            .map(|c| c.key.as_ref().unwrap().get().to_owned())
            .collect();
        assert_eq!(keys, [r#"{"a":1}"#, r#"{"a":2}"#]);
        let found = findings().await;
        assert!(found[0].1.contains("known by (a)"), "{found:?}");
        app.run("alter table t add unique (a); alter table t rename s to shard")
            .await;
        let found = findings().await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].1.contains("column 's'"), "{found:?}");
        assert_eq!(found[0].0, Severity::Warning);
        app.run("update changefeed.feed_source set shard_by = 'shard'")
            .await;
        store.refresh_triggers().await.unwrap();
        assert_eq!(findings().await, []);
    });
}
