//! Events of tables: what is written for each change, by whatever connection.

use changefeed_core::{Kind, OrderBy, TableName, TriggerStore, Updates};

use crate::event_support::everything;
use crate::support::Lab;

#[tokio::test]
async fn the_stock_shell_writes_events_of_every_kind() {
    let lab = Lab::new().await;
    lab.shell("create table orders (id integer primary key, customer text, total real);")
        .unwrap();
    lab.trigger(&everything("orders")).await;
    lab.shell(
        "insert into orders values (1, 'alice', 1.5), (2, null, 2);
         update orders set total = 3 where id = 1;
         update orders set total = 3 where id = 1;
         update orders set id = 7, customer = null where id = 1;
         delete from orders;",
    )
    .unwrap();
    let alice = r#"{"id":1,"customer":"alice","total":1.5}"#;
    let two = r#"{"id":2,"customer":null,"total":2.0}"#;
    let paid = r#"{"id":1,"customer":"alice","total":3.0}"#;
    let moved = r#"{"id":7,"customer":null,"total":3.0}"#;
    assert_eq!(
        lab.events().await,
        [
            format!("INSERT - > {alice}"),
            format!("INSERT - > {two}"),
            format!("UPDATE {alice} > {paid}"),
            format!("UPDATE {paid} > {moved}"),
            format!("DELETE {two} > -"),
            format!("DELETE {moved} > -"),
        ]
    );
    // As people see it by SQL.
    let seen = lab
        .shell(
            "select trigger_name, schema_name, table_name, op, delivered, error, tries, archived,
                    locked_by is null, next_retry_at = created_at
               from changefeed_event_log order by change_id limit 1;
             select id, created_at from changefeed_event_log order by change_id limit 1;",
        )
        .unwrap();
    let log = lab.log().await;
    let first = &log[0].event;
    assert_eq!(
        seen,
        format!(
            "all|main|orders|INSERT|0|0|0|0|1|1\n{}|{}\n",
            first.id, first.created_at
        )
    );
    assert!(first.created_at.ends_with('Z') && first.created_at.len() == 24);
}

#[tokio::test]
async fn a_rollback_leaves_nothing() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (a)").unwrap();
    lab.trigger(&everything("t")).await;
    app.execute_batch("begin; insert into t values (1); rollback; insert into t values (2)")
        .unwrap();
    assert_eq!(lab.events().await, [r#"INSERT - > {"a":2}"#]);
}

/// Every value as the database holds it, against what the event says.
#[tokio::test]
async fn every_value_has_its_json() {
    let values = [
        ("null", "null"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("0.1", "0.1"),
        ("0.1 + 0.2", "0.30000000000000004441"),
        ("1.0", "1.0"),
        ("-1e300", "-1.0e+300"),
        ("9e999", "\"Infinity\""),
        ("-9e999", "\"-Infinity\""),
        ("x'00ffAB'", "\"\\\\x00ffab\""),
        ("x''", "\"\\\\x\""),
        ("''", "\"\""),
        ("'q\"uo\\te' || char(10, 9, 1)", r#""q\"uo\\te\n\t\u0001""#),
        ("'a' || char(0) || 'b'", "\"a\\u0000b\""),
        ("cast(x'61ff62e2' as text)", "\"a\u{fffd}b\u{fffd}\""),
        ("'1'", "\"1\""),
        ("'é😀'", "\"é😀\""),
        // A JSON function's value is a text once it is stored.
        ("json('{\"a\": 1}')", r#""{\"a\":1}""#),
        ("json_array(1)", r#""[1]""#),
        ("'%s %d {}'", "\"%s %d {}\""),
    ];
    for by_shell in [false, true] {
        let lab = Lab::new().await;
        let app = lab.app();
        app.execute_batch("create table t (a)").unwrap();
        lab.trigger(&everything("t")).await;
        for (sql, _) in values {
            let write = format!("insert into t values ({sql});");
            if by_shell {
                lab.shell(&write).unwrap();
            } else {
                app.execute_batch(&write).unwrap();
            }
        }
        for (event, (sql, json)) in lab.events().await.iter().zip(values) {
            let number = |text: &str| {
                let text = text
                    .trim_start_matches("INSERT - > {\"a\":")
                    .trim_end_matches('}');
                text.parse::<f64>().ok()
            };
            let expected = format!("INSERT - > {{\"a\":{json}}}");
            // How many digits depends on the version of SQLite, the number does not.
            let same_number = number(event).is_some() && number(event) == number(&expected);
            assert!(*event == expected || same_number, "{sql}: {event}");
        }
    }
}

#[tokio::test]
async fn reals_come_back_exactly() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (a)").unwrap();
    lab.trigger(&everything("t")).await;
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    let mut reals = vec![
        0.0,
        5e-324,
        f64::MAX,
        f64::MIN_POSITIVE,
        1e22,
        19.99,
        1.0 / 3.0,
    ];
    while reals.len() < 20_000 {
        bits = bits
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let real = f64::from_bits(bits ^ (bits >> 29));
        if real.is_finite() {
            reals.push(real);
        }
        // And such as people write.
        let cents = f64::from(u32::try_from(bits >> 40).unwrap()) / 100.0;
        reals.extend([cents, cents / 1e9, -cents * 1e9, cents.sqrt()]);
    }
    app.execute_batch("begin").unwrap();
    for real in &reals {
        app.execute("insert into t values (?1)", [real]).unwrap();
    }
    app.execute_batch("commit").unwrap();
    // The same in the stock shell, which is of another version.
    lab.shell("insert into t select a from t order by rowid;")
        .unwrap();
    let log = lab.log().await;
    assert_eq!(log.len(), 2 * reals.len());
    for (event, real) in log.iter().zip(reals.iter().chain(&reals)) {
        let text = event.event.new.as_ref().unwrap().get();
        let digits = &text[5..text.len() - 1];
        assert_eq!(digits.parse::<f64>().unwrap(), *real, "{text}");
    }
}

#[tokio::test]
async fn ten_megabytes_arrive() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (a, b)").unwrap();
    lab.trigger(&everything("t")).await;
    app.execute_batch("insert into t values (printf('%.10000000c', 'x'), zeroblob(1000000))")
        .unwrap();
    let log = lab.log().await;
    assert_eq!(
        log[0].event.new.as_ref().unwrap().get().len(),
        "{\"a\":\"\",\"b\":\"\\\\x\"}".len() + 10_000_000 + 2_000_000
    );
}

#[tokio::test]
async fn only_listened_columns_make_update_events() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, a text collate nocase, b, c)")
        .unwrap();
    app.execute_batch("insert into t values (1, 'x', 1, 1)")
        .unwrap();
    let mut definition = everything("t");
    definition.capture.insert = false;
    definition.capture.delete = false;
    definition.capture.update = Updates::Of(vec!["A".into(), "b".into()]);
    definition.capture.payload = Some(vec!["b".into(), "A".into(), "b".into()]);
    lab.trigger(&definition).await;
    for (statement, expected) in [
        ("update t set c = 2", 0),
        ("update t set a = 'x', b = 1", 0),
        // The same to the column's collation, but not the same.
        ("update t set a = 'X'", 1),
        ("update t set b = null", 1),
        ("update t set b = null", 0),
        ("update t set b = 1", 1),
        ("update t set b = 1.0", 1),
        ("update t set b = '1'", 1),
        ("update t set b = x'31'", 1),
        ("update t set id = 5", 0),
        ("insert into t values (2, 'n', 1, 1)", 0),
        ("delete from t where id = 2", 0),
    ] {
        let before = lab.log().await.len();
        app.execute_batch(statement).unwrap();
        assert_eq!(lab.log().await.len() - before, expected, "{statement}");
    }
    assert_eq!(
        lab.events().await[0],
        r#"UPDATE {"b":1,"a":"x"} > {"b":1,"a":"X"}"#
    );
}

#[tokio::test]
async fn tables_and_columns_may_have_any_name() {
    for table in [
        "order",
        "weird]name",
        "UPPER case",
        "a\"b",
        "new",
        "old",
        "{table}",
        "ta'b",
        "%s",
    ] {
        let lab = Lab::new().await;
        let name = table.replace('"', "\"\"");
        let columns = [
            "select",
            "a\"b",
            "Mixed Case",
            "{id}",
            "%s",
            "it's",
            "old",
            "rowid",
        ];
        let quoted: Vec<String> = columns
            .iter()
            .map(|c| format!("\"{}\"", c.replace('"', "\"\"")))
            .collect();
        lab.shell(&format!("create table \"{name}\" ({});", quoted.join(", ")))
            .unwrap();
        let mut definition = everything(&table.to_uppercase());
        definition.capture.condition = Some("new.\"{id}\" = 4 or new.\"it's\" is null".into());
        definition.capture.order_by = Some(OrderBy::Column("a\"b".into()));
        lab.trigger(&definition).await;
        lab.shell(&format!(
            "insert into \"{name}\" values (1, 2, 3, 4, 5, 6, 7, 8);
             update \"{name}\" set \"select\" = 9; delete from \"{name}\";"
        ))
        .unwrap();
        let row = |first: i32| {
            format!(
                "{{\"select\":{first},\"a\\\"b\":2,\"Mixed Case\":3,\"{{id}}\":4,\"%s\":5,\
                 \"it's\":6,\"old\":7,\"rowid\":8}}"
            )
        };
        assert_eq!(
            lab.events().await,
            [
                format!("INSERT - > {}", row(1)),
                format!("UPDATE {} > {}", row(1), row(9)),
                format!("DELETE {} > -", row(9)),
            ],
            "{table}"
        );
    }
}

#[tokio::test]
async fn wide_tables_generated_columns_and_cascades() {
    let lab = Lab::new().await;
    let columns: Vec<String> = (0..700).map(|n| format!("c{n}")).collect();
    lab.shell(&format!("create table wide ({});", columns.join(", ")))
        .unwrap();
    lab.trigger(&everything("wide")).await;
    lab.shell("insert into wide (c699) values (1); update wide set c0 = 5; delete from wide;")
        .unwrap();
    let log = lab.log().await;
    assert_eq!(log.len(), 3);
    let row: serde_json::Value =
        serde_json::from_str(log[1].event.new.as_ref().unwrap().get()).unwrap();
    assert_eq!(row.as_object().unwrap().len(), 700);
    assert_eq!(
        (&row["c0"], &row["c1"], &row["c699"]),
        (&5.into(), &().into(), &1.into())
    );

    let lab = Lab::new().await;
    lab.shell(
        "create table parent (id integer primary key);
         create table child (id integer primary key, p references parent on delete cascade,
                             twice as (id * 2), stored as (id * 3) stored);",
    )
    .unwrap();
    lab.trigger(&everything("child")).await;
    lab.shell(
        "pragma foreign_keys = on; insert into parent values (1);
         insert into child (id, p) values (4, 1), (5, 1);
         delete from parent;",
    )
    .unwrap();
    assert_eq!(
        lab.events().await[1..],
        [
            r#"INSERT - > {"id":5,"p":1,"twice":10,"stored":15}"#,
            r#"DELETE {"id":4,"p":1,"twice":8,"stored":12} > -"#,
            r#"DELETE {"id":5,"p":1,"twice":10,"stored":15} > -"#,
        ]
    );
}

#[tokio::test]
async fn a_statement_with_a_hundred_thousand_rows() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, a)")
        .unwrap();
    lab.trigger(&everything("t")).await;
    app.execute_batch(
        "insert into t with recursive n (n) as (values (1) union all select n + 1 from n \
         where n < 100000) select n, 'x' from n; update t set a = id; delete from t",
    )
    .unwrap();
    let counts = lab
        .shell("select op, count(*), min(old), max(new) from changefeed_event_log group by op;")
        .unwrap();
    assert_eq!(
        counts,
        "DELETE|100000|{\"id\":1,\"a\":1}|\n\
         INSERT|100000||{\"id\":99999,\"a\":\"x\"}\n\
         UPDATE|100000|{\"id\":1,\"a\":\"x\"}|{\"id\":99999,\"a\":99999}\n"
    );
}

#[tokio::test]
async fn conditions_choose_the_changes_and_never_fail_a_write() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, a, doc)")
        .unwrap();
    let mut definition = everything("t");
    definition.capture.condition =
        Some("new.doc ->> 'kind' = 'big' or json_extract(old.doc, '$.kind') = 'big'".into());
    lab.trigger(&definition).await;
    for (statement, expected) in [
        (r#"insert into t values (1, 1, '{"kind":"big"}')"#, 1),
        (r#"insert into t values (2, 1, '{"kind":"small"}')"#, 0),
        ("insert into t values (3, 1, 'not JSON')", 0),
        ("insert into t values (4, 1, x'00')", 0),
        ("insert into t values (5, 1, null)", 0),
        ("update t set a = 2", 1),
        ("insert or replace into t values (1, 1, null)", 1),
        (
            r#"insert or replace into t values (2, 1, '{"kind":"big"}')"#,
            1,
        ),
        ("delete from t", 1),
    ] {
        let before = lab.log().await.len();
        app.execute_batch(statement)
            .unwrap_or_else(|e| panic!("{statement}: {e}"));
        assert_eq!(lab.log().await.len() - before, expected, "{statement}");
    }
    let mut definition = everything("t");
    definition.name = "other".parse().unwrap();
    for (condition, sentence) in [
        ("new.a >", "does not accept the condition"),
        ("new.a = abs(-9223372036854775808)", "the function abs"),
        ("max(new.a) = 1", "does not accept the condition"),
        ("new.nothing = 1", "no column 'nothing'"),
    ] {
        definition.capture.condition = Some(condition.into());
        let error = lab
            .store
            .create_trigger(&definition, false)
            .await
            .unwrap_err();
        assert!(error.message().contains(sentence), "{error:?}");
        assert_eq!(lab.store.triggers().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn bad_definitions_get_one_clear_sentence() {
    let lab = Lab::new().await;
    lab.shell(
        "create table t (id integer primary key, a); create table loose (a);
         create view v as select * from t; create virtual table f using fts5(x);
         create table counted (id integer primary key autoincrement);",
    )
    .unwrap();
    lab.trigger(&everything("t")).await;
    let refused = |table: &str| {
        let definition = changefeed_core::TriggerDefinition {
            name: "next".parse().unwrap(),
            ..everything(table)
        };
        let store = lab.store.clone();
        async move { store.create_trigger(&definition, false).await.unwrap_err() }
    };
    for (table, kind, sentence) in [
        ("nothing", Kind::NotFound, "there is no table nothing"),
        ("v", Kind::Invalid, "v is a view"),
        ("f", Kind::Invalid, "f is a virtual table"),
        ("changefeed_event", Kind::Invalid, "changefeed's own"),
        ("sqlite_sequence", Kind::Invalid, "SQLite's own"),
    ] {
        let error = refused(table).await;
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.message().contains(sentence), "{error:?}");
    }
    let again = lab
        .store
        .create_trigger(&everything("t"), false)
        .await
        .unwrap_err();
    assert_eq!(again.kind(), Kind::AlreadyExists);
    let mut definition = everything("T");
    definition.name = "next".parse().unwrap();
    definition.capture.payload = Some(vec!["nope".into()]);
    let error = lab
        .store
        .create_trigger(&definition, false)
        .await
        .unwrap_err();
    assert_eq!(error.advice(), Some("its columns are id, a"));
    let mut definition = everything("loose");
    definition.name = "next".parse().unwrap();
    definition.capture.order_by = Some(OrderBy::Key);
    let error = lab
        .store
        .create_trigger(&definition, false)
        .await
        .unwrap_err();
    assert!(error.message().contains("no primary key"), "{error:?}");
    let mut definition = everything("t");
    definition.name = "next".parse().unwrap();
    definition.table = TableName::qualified("temp", "t");
    let error = lab
        .store
        .create_trigger(&definition, false)
        .await
        .unwrap_err();
    assert!(error.message().contains("main database"), "{error:?}");
    // None of them left anything behind.
    assert_eq!(
        lab.shell("select count(*) from sqlite_master where name glob 'changefeed_event_[0-9]*';")
            .unwrap(),
        "8\n"
    );
}

/// Settings of the writer, and of the file, change nothing about what is written.
#[tokio::test]
async fn whatever_the_writer_or_the_file_is_set_to() {
    let lab = Lab::bare().await;
    lab.shell("pragma encoding = 'UTF-16le'; create table t (id integer primary key, a);")
        .unwrap();
    changefeed_core::SchemaStore::migrate(&lab.store)
        .await
        .unwrap();
    lab.trigger(&everything("t")).await;
    lab.shell(
        "pragma cell_size_check = on; pragma foreign_keys = on;
         pragma case_sensitive_like = on; pragma short_column_names = off;
         pragma full_column_names = on; pragma count_changes = on; pragma reverse_unordered_selects = on;
         insert into t values (1, 'é😀' || char(0) || '\"'), (2, 0.1), (3, x'00');
         replace into t values (2, 0.2); delete from t where id = 3;",
    )
    .unwrap();
    assert_eq!(
        lab.events().await,
        [
            "INSERT - > {\"id\":1,\"a\":\"é😀\\u0000\\\"\"}",
            r#"INSERT - > {"id":2,"a":0.1}"#,
            r#"INSERT - > {"id":3,"a":"\\x00"}"#,
            r#"DELETE {"id":2,"a":0.1} > -"#,
            r#"INSERT - > {"id":2,"a":0.2}"#,
            r#"DELETE {"id":3,"a":"\\x00"} > -"#,
        ]
    );
}

/// A file of ours that is attached to another one.
#[tokio::test]
async fn a_writer_that_has_attached_the_file() {
    let lab = Lab::new().await;
    lab.shell("create table t (a primary key);").unwrap();
    lab.trigger(&everything("t")).await;
    let app = changefeed_sqlite::rusqlite::Connection::open_in_memory().unwrap();
    app.execute_batch(&format!(
        "attach '{}' as x; create table t (b); create table changefeed_change_id (c);
         insert into x.t values (1); replace into x.t values (1);",
        lab.path().display()
    ))
    .unwrap();
    let row = r#"{"a":1}"#;
    assert_eq!(
        lab.events().await,
        [
            format!("INSERT - > {row}"),
            format!("DELETE {row} > -"),
            format!("INSERT - > {row}")
        ]
    );
}

#[tokio::test]
async fn a_table_too_wide_for_other_programs_needs_named_columns() {
    let lab = Lab::new().await;
    let columns: Vec<String> = (0..1990).map(|n| format!("column_{n}")).collect();
    lab.shell(&format!("create table wide ({});", columns.join(", ")))
        .unwrap();
    let mut definition = everything("wide");
    let error = lab
        .store
        .create_trigger(&definition, false)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    definition.capture.payload = Some(vec!["column_1989".into()]);
    definition.capture.update = Updates::Of(vec!["column_0".into()]);
    lab.trigger(&definition).await;
    lab.shell("insert into wide (column_1989) values (5);")
        .unwrap();
    assert_eq!(lab.events().await, [r#"INSERT - > {"column_1989":5}"#]);
}

/// Older programs take JSON functions for unsafe in this mode; see docs/sqlite.md.
#[tokio::test]
async fn a_writer_that_does_not_trust_the_schema() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (a)").unwrap();
    lab.trigger(&everything("t")).await;
    app.execute_batch("pragma trusted_schema = off; insert into t values ('x')")
        .unwrap();
    assert_eq!(lab.events().await, [r#"INSERT - > {"a":"x"}"#]);
    // Tables without event triggers are written by all of them.
    lab.shell("pragma trusted_schema = off; create table u (a); insert into u values (1);")
        .unwrap();
}

/// What the application sees of its own writes is as without us.
#[tokio::test]
async fn counters_of_the_application_are_its_own() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, a unique)")
        .unwrap();
    lab.trigger(&everything("t")).await;
    assert_eq!(
        app.execute("insert into t (a) values (1), (2)", [])
            .unwrap(),
        2
    );
    assert_eq!(app.last_insert_rowid(), 2);
    assert_eq!(app.execute("replace into t (a) values (1)", []).unwrap(), 1);
    assert_eq!((app.last_insert_rowid(), app.changes()), (3, 1));
    let returned: i64 = app
        .query_row("update t set a = 9 where id = 3 returning a", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(returned, 9);
    assert_eq!(app.execute("delete from t", []).unwrap(), 2);
    // A write that fails leaves no event.
    let before = lab.log().await.len();
    app.execute_batch("insert into t values (1, 1)").unwrap();
    app.execute_batch("insert into t values (2, 2), (1, 3)")
        .unwrap_err();
    assert_eq!(lab.log().await.len(), before + 1);
}
