//! Every type of the server as JSON, with the server as the judge: what is cast back from the
//! event is what was written.

use std::collections::BTreeSet;

use changefeed_core::Updates;
use changefeed_testkit::events::{LEASE, claim, log, told};
use changefeed_testkit::run;
use serde_json::json;

use crate::events::scene::Scene;

/// Settings of a writer that would show in what it writes, if they could.
pub(crate) const ODD: &str = "set timezone = 'America/St_Johns'; set datestyle = 'German'; \
    set bytea_output = escape; set intervalstyle = sql_standard; set extra_float_digits = -15; \
    set xmlbinary = hex; set array_nulls = off; set quote_all_identifiers = on; \
    set default_text_search_config = 'pg_catalog.german'";

/// Types with values of theirs, as literals.
const VALUES: [(&str, &[&str]); 74] = [
    ("bool", &["true", "false"]),
    ("bytea", &["'\\x'", "'\\x00ff5c27'", "'\\x61'"]),
    ("\"char\"", &["'a'", "'\"'"]),
    ("name", &["'a name'", "'Ω\"'"]),
    (
        "int8",
        &["9223372036854775807", "-9223372036854775808", "0"],
    ),
    ("int2", &["32767", "-32768"]),
    ("int4", &["2147483647", "-2147483648"]),
    ("regproc", &["'pg_catalog.now'", "0"]),
    (
        "text",
        &[
            "''",
            "'plain'",
            "E'\\x01\\t\\n\\r\\\"\\\\ '' / \\u2028 \\uFEFF'",
            "'é日本🙂\u{202e}abc'",
            "'NULL'",
            "'{1,2}'",
            "'%s $1 ? {after}'",
        ],
    ),
    ("oid", &["4294967295", "0"]),
    ("tid", &["'(42,7)'"]),
    ("xid", &["'4294967295'"]),
    ("cid", &["'7'"]),
    (
        "json",
        &[
            "'{\"a\":1,\"a\":2, \"b\" : [1.0, 1e400, 12345678901234567890123]}'",
            "'{\"u\":\"\\ud83d\\ude00\"}'",
            // An array within would be a dimension of the array of these.
            "'{\"x\":[]}'",
        ],
    ),
    ("xml", &["'<a b=\"c\">é &amp;</a>'"]),
    ("point", &["'(1.5,-2)'", "'(0.1,1e300)'"]),
    ("lseg", &["'[(1,2),(3,4)]'"]),
    ("path", &["'[(1,2),(3,4)]'", "'((1,2),(3,4))'"]),
    ("box", &["'(3,4),(1,2)'"]),
    ("polygon", &["'((1,2),(3,4),(5,6))'"]),
    ("line", &["'{1,2,3}'"]),
    (
        "float4",
        &[
            "'NaN'",
            "'Infinity'",
            "1e-45",
            "3.4028235e38",
            "0.1",
            "-0.0::float4",
        ],
    ),
    (
        "float8",
        &[
            "'NaN'",
            "'-Infinity'",
            "5e-324",
            "1.7976931348623157e308",
            "0.1::float8 + 0.2::float8",
            "1e22",
            "'-0'",
        ],
    ),
    ("circle", &["'<(1,2),3>'"]),
    ("money", &["'-1234567.89'", "'92233720368547758.07'"]),
    ("macaddr", &["'08:00:2b:01:02:03'"]),
    ("inet", &["'192.168.0.1/24'", "'::1'"]),
    ("cidr", &["'10.0.0.0/8'", "'2001:db8::/32'"]),
    ("macaddr8", &["'08:00:2b:01:02:03:04:05'"]),
    ("aclitem", &["'=r/' || current_user"]),
    ("bpchar(5)", &["'ab'", "''"]),
    ("varchar(10)", &["'varchar'", "' '"]),
    (
        "date",
        &[
            "'2026-02-28'",
            "'infinity'",
            "'-infinity'",
            "'4713-01-01 BC'",
            "'5874897-12-31'",
        ],
    ),
    ("time", &["'23:59:59.999999'", "'24:00:00'"]),
    (
        "timestamp",
        &[
            "'2026-01-02 03:04:05.678901'",
            "'infinity'",
            "'0044-03-15 12:00 BC'",
            "'294276-12-31 23:59:59.999999'",
        ],
    ),
    (
        "timestamptz",
        &[
            "'2026-01-01 00:00:00.000001+05:30'",
            "'infinity'",
            "'-infinity'",
            "'0044-03-15 12:00:00+00 BC'",
            "'1883-11-18 12:00:00+00'",
            "'294276-12-31 23:59:59.999999+00'",
        ],
    ),
    (
        "interval",
        &[
            "'1 year 2 mons -3 days 04:05:06.789'",
            "'-178000000 years'",
            "'0'",
            "'1 mon -1 days'",
        ],
    ),
    ("timetz", &["'12:00:00+05:30'", "'24:00:00-15:59'"]),
    ("bit(8)", &["B'10100101'"]),
    ("varbit", &["B'101'", "B''"]),
    (
        "numeric",
        &[
            "1234567890123456789012345678901234567890.1234567890123456789",
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
            "1.500",
            "1e-100",
            "-0.00",
            "1e500",
        ],
    ),
    ("refcursor", &["'a cursor'"]),
    ("regprocedure", &["'pg_catalog.abs(int4)'"]),
    ("regoper", &["'pg_catalog.*<>'"]),
    ("regoperator", &["'pg_catalog.+(int4,int4)'"]),
    ("regclass", &["'pg_catalog.pg_class'", "'\"Odd Table\"'"]),
    ("regcollation", &["'pg_catalog.\"C\"'"]),
    ("regtype", &["'int4[]'", "'pg_catalog.timestamptz'"]),
    ("regrole", &["'pg_monitor'"]),
    ("regnamespace", &["'pg_catalog'"]),
    ("regconfig", &["'pg_catalog.english'"]),
    ("regdictionary", &["'pg_catalog.simple'"]),
    ("uuid", &["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
    ("pg_lsn", &["'16/B374D848'"]),
    ("tsvector", &["$$'a b':1A 'c''d':2$$"]),
    ("tsquery", &["$$'a' & !'b' <-> 'c d'$$"]),
    (
        "jsonb",
        &[
            "'{\"b\":[1.50,null,\"é\\\"\"],\"a\":{}}'",
            "'12345678901234567890.123'",
            "'\"x\"'",
        ],
    ),
    ("jsonpath", &["'$.a[*] ? (@ > 1)'"]),
    ("txid_snapshot", &["'10:20:10,14,15'"]),
    ("pg_snapshot", &["'10:20:10,14,15'"]),
    ("xid8", &["'18446744073709551615'"]),
    ("int4range", &["'[1,10)'", "'empty'", "'(,)'"]),
    ("numrange", &["'(1.50,2.5]'"]),
    ("tsrange", &["'[2026-01-01 12:00,infinity]'"]),
    ("tstzrange", &["'[2026-01-01 12:00+02,)'"]),
    ("daterange", &["'[2026-01-01,2026-02-01)'"]),
    (
        "int8range",
        &["'[-9223372036854775808,9223372036854775806)'"],
    ),
    ("int4multirange", &["'{[1,3),[5,8)}'", "'{}'"]),
    ("nummultirange", &["'{[1.5,2.5]}'"]),
    ("tsmultirange", &["'{[2026-01-01,2026-01-02)}'"]),
    (
        "tstzmultirange",
        &["'{[2026-01-01 00:00+05,2026-01-02 00:00+05)}'"],
    ),
    ("datemultirange", &["'{[2026-01-01,2026-01-02)}'"]),
    ("int8multirange", &["'{[1,9223372036854775807)}'"]),
    ("varchar", &["'no limit'"]),
];

/// Types that have no value anybody could write.
const WITHOUT_VALUES: [&str; 7] = [
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
];

/// One column for each type and one for its array; a row for each value.
#[test]
fn every_type_of_the_server_comes_back_as_it_was() {
    run(async {
        let mut columns = vec!["id int primary key".to_owned()];
        for (n, (kind, _)) in VALUES.iter().enumerate() {
            columns.push(format!("c{n} {kind}"));
            columns.push(format!("a{n} {kind}[]"));
        }
        let scene = Scene::new(&format!(
            "create table \"Odd Table\" (x int); create table orders ({})",
            columns.join(", ")
        ))
        .await;
        every_type_is_in_the_list(&scene).await;
        scene.trigger().await;
        let writer = scene.another_session().await;
        writer.run(ODD).await;
        let rows = VALUES.iter().map(|(_, v)| v.len()).max().unwrap();
        for row in 0..rows {
            let mut names = vec!["id".to_owned()];
            let mut values = vec![row.to_string()];
            for (n, (kind, literals)) in VALUES.iter().enumerate() {
                if let Some(literal) = literals.get(row) {
                    names.extend([format!("c{n}"), format!("a{n}")]);
                    values.push(format!("({literal})::{kind}"));
                    // NULL as an element, and every value there is.
                    let all = literals.join(&format!(")::{kind}, ("));
                    values.push(format!("array[({all})::{kind}, null]"));
                }
            }
            let sql = format!(
                "insert into orders ({}) values ({})",
                names.join(", "),
                values.join(", ")
            );
            writer.run(&sql).await;
        }
        come_back(&scene, "INSERT", "new", rows).await;
        // Old and new of an update, and the old row of a delete, take other ways.
        writer.run("update orders set id = id + 1000").await;
        come_back(&scene, "UPDATE", "new", rows).await;
        scene.session.run("create table kept as table orders").await;
        writer.run("delete from orders").await;
        scene
            .session
            .run("alter table orders disable trigger all; insert into orders table kept")
            .await;
        come_back(&scene, "DELETE", "old", rows).await;
    });
}

/// Arrays that begin with 0, which JSON does not tell; their form is below.
const VECTORS: [&str; 2] = ["int2vector", "oidvector"];

/// Compares what the events say with what the table holds, column by column.
async fn come_back(scene: &Scene, op: &str, side: &str, rows: usize) {
    for (n, (kind, literals)) in VALUES.iter().enumerate() {
        for column in [format!("c{n}"), format!("a{n}")] {
            let bad = scene
                .session
                .query(&format!(
                    "select t.{column}::text, (e.{side} -> '{column}')::text \
                     from changefeed.event_log e \
                     cross join lateral json_populate_record(null::orders, \
                       json_build_object('id', e.{side} -> 'id', \
                                         '{column}', e.{side} -> '{column}')) p \
                     join orders t on t.id = p.id \
                     where e.op = '{op}' and not (row(t.{column})::record *= \
                                                  row(p.{column})::record)"
                ))
                .await
                .unwrap_or_else(|e| panic!("{op} {side} of {kind} ({column}): {e}"));
            assert!(bad.is_empty(), "{op} {side} of {kind} ({column}): {bad:?}");
            let found = scene
                .session
                .number(&format!(
                    "select count(*) from changefeed.event_log e \
                     cross join lateral json_populate_record(null::orders, \
                       json_build_object('id', e.{side} -> 'id', \
                                         '{column}', e.{side} -> '{column}')) p \
                     join orders t on t.id = p.id \
                     where e.op = '{op}' and t.{column} is not null"
                ))
                .await;
            assert_eq!(
                usize::try_from(found).unwrap(),
                literals.len(),
                "{op} {kind}"
            );
        }
    }
    let events = log(&*scene.store).await;
    let count = events.iter().filter(|e| e.event.op.as_str() == op).count();
    assert_eq!(count, rows);
}

async fn every_type_is_in_the_list(scene: &Scene) {
    let all: BTreeSet<String> = scene
        .session
        .query(
            "select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace \
             and typtype in ('b', 'r', 'm') and typelem = 0 and typname !~ '^_'",
        )
        .await
        .unwrap()
        .into_iter()
        .filter_map(|row| row[0].clone())
        .collect();
    let known: BTreeSet<String> = VALUES
        .iter()
        .map(|(kind, _)| kind.split('(').next().unwrap().replace('"', ""))
        .chain(WITHOUT_VALUES.map(str::to_owned))
        .chain(VECTORS.map(str::to_owned))
        .collect();
    let missing: Vec<&String> = all.difference(&known).collect();
    assert!(missing.is_empty(), "types without a test: {missing:?}");
}

/// The documented forms, whatever the writer's session has set.
#[test]
fn values_have_their_documented_form() {
    run(async {
        let scene = Scene::new("create table orders (id int primary key, v text)").await;
        let writer = scene.another_session().await;
        writer.run(ODD).await;
        for (n, (kind, literal, json)) in [
            (
                "timestamptz",
                "'2026-01-01 00:00:00+05'",
                "\"2025-12-31T19:00:00+00:00\"",
            ),
            ("timestamptz", "'infinity'", "\"infinity\""),
            (
                "timestamp",
                "'2026-01-01 05:00:00.5'",
                "\"2026-01-01T05:00:00.5\"",
            ),
            ("date", "'2026-01-31'", "\"2026-01-31\""),
            (
                "interval",
                "'1 year 2 days 03:04:05'",
                "\"1 year 2 days 03:04:05\"",
            ),
            ("bytea", "'\\x00ff'", "\"\\\\x00ff\""),
            (
                "numeric",
                "12345678901234567890.10",
                "12345678901234567890.10",
            ),
            ("numeric", "'NaN'", "\"NaN\""),
            ("float8", "'-Infinity'", "\"-Infinity\""),
            ("float8", "0.1::float8 + 0.2::float8", "0.30000000000000004"),
            ("int8", "9223372036854775807", "9223372036854775807"),
            ("bool", "true", "true"),
            ("json", "'{\"b\" : 1, \"b\":2}'", "{\"b\" : 1, \"b\":2}"),
            ("json", "'\"\\u0000 \\ud800\"'", "\"\\u0000 \\ud800\""),
            ("json", "'[]'", "[]"),
            ("int2vector", "'1 2 -3'", "[1,2,-3]"),
            ("oidvector", "'1 4294967295'", "[\"1\",\"4294967295\"]"),
            ("int[]", "array[[1,null],[3,4]]", "[[1,null],[3,4]]"),
            ("money", "'-1234.5'", "\"-$1,234.50\""),
            (
                "uuid",
                "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
                "\"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\"",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let table = format!("t{n}");
            scene
                .session
                .run(&format!("create table {table} (v {kind})"))
                .await;
            scene
                .trigger_with(|d| {
                    d.name = table.parse().unwrap();
                    d.table.name = table.clone();
                })
                .await;
            writer
                .run(&format!("insert into {table} values (({literal})::{kind})"))
                .await;
            let event = log(&*scene.store).await.pop().unwrap();
            assert_eq!(
                event.event.new.as_ref().unwrap().get(),
                format!("{{\"v\":{json}}}"),
                "{kind} {literal}"
            );
        }
    });
}

/// Enums, domains, composites and their arrays: their text, by their output function.
#[test]
fn types_of_ones_own_are_their_texts() {
    run(async {
        let scene = Scene::new(
            "create schema \"Odd Schema\"; \
             create type \"Odd Schema\".mood as enum ('so \"so\"', 'NULL', '', 'a,b'); \
             create domain positive as numeric check (value > 0); \
             create domain glad as \"Odd Schema\".mood; \
             create type pair as (a int, b text, c timestamptz); \
             create type textrange as range (subtype = text); \
             create table orders (id int primary key, m \"Odd Schema\".mood, p positive, g glad, \
               c pair, r textrange, ms \"Odd Schema\".mood[], ps positive[], gs glad[], \
               cs pair[], rs textrange[], mr textmultirange)",
        )
        .await;
        scene.trigger().await;
        let writer = scene.another_session().await;
        writer.run(ODD).await;
        writer
            .run(
                "insert into orders values (1, 'so \"so\"', 1.50, 'NULL', \
                 row(1, 'x,\"y', '2026-01-01 00:00+05'), '[a,\"b c\"]', \
                 array['so \"so\"', 'NULL', null, '', 'a,b']::\"Odd Schema\".mood[], \
                 array[1.50, null]::positive[], array['NULL', null]::glad[], \
                 array[row(1, null, null), null]::pair[], array['[a,b]', null]::textrange[], \
                 '{[a,b]}'); \
                 insert into orders (id) values (2)",
            )
            .await;
        let told = told(&*scene.store).await;
        assert_eq!(
            told[0].2,
            json!({"id": 1, "m": "so \"so\"", "p": 1.50, "g": "NULL",
                   "c": "(1,\"x,\"\"y\",\"2025-12-31 19:00:00+00\")", "r": "[a,\"b c\"]",
                   "ms": ["so \"so\"", "NULL", null, "", "a,b"],
                   "ps": ["1.50", null], "gs": ["NULL", null],
                   "cs": ["(1,,)", null], "rs": ["[a,b]", null], "mr": "{[a,b]}"})
        );
        assert!(
            told[1]
                .2
                .as_object()
                .unwrap()
                .values()
                .skip(1)
                .all(|v| v.is_null() || v == 2),
            "{:?}",
            told[1].2
        );
        // The server reads it back.
        let same = scene
            .session
            .number(
                "select count(*) from changefeed.event_log e join orders t on t.id = 1 \
                 where (e.new ->> 'm')::\"Odd Schema\".mood = t.m \
                   and (e.new ->> 'p')::positive = t.p and (e.new ->> 'c')::pair = t.c \
                   and (e.new ->> 'r')::textrange = t.r and (e.new ->> 'mr')::textmultirange = t.mr \
                   and array(select x::\"Odd Schema\".mood \
                             from json_array_elements_text(e.new -> 'ms') x) = t.ms",
            )
            .await;
        assert_eq!(same, 1);
    });
}

/// Ten megabytes, and an update that compares them.
#[test]
fn a_text_of_ten_megabytes_passes_whole() {
    run(async {
        let scene = Scene::new("create table orders (id int primary key, v text, n int)").await;
        let trigger = scene
            .trigger_with(|d| d.capture.update = Updates::Of(vec!["v".into()]))
            .await;
        scene
            .session
            .run("insert into orders values (1, repeat('é\"', 3500000), 1)")
            .await;
        scene.session.run("update orders set n = 2").await;
        scene.session.run("update orders set v = v || 'x'").await;
        let held = claim(&*scene.store, &trigger, 10, "a", LEASE).await;
        assert_eq!(held.len(), 2);
        let new = held[1].event.new.as_ref().unwrap().get();
        assert_eq!(
            new.len(),
            "{\"id\":1,\"v\":\"\",\"n\":2}".len() + 4 * 3_500_000 + 1
        );
        assert!(new.contains("é\\\"x"));
    });
}
