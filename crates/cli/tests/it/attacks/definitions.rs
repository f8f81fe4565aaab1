//! Definitions over HTTP that reach for the environment or the server's files.

use std::sync::Arc;

use changefeed::{Capture, Delivery, Header, Setting, Sink, TableName, TriggerDefinition, Webhook};
use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;
use changefeed_testkit::receiver::Receiver;
use serde_json::{Value, json};

use crate::http::client::{get, request};
use crate::http::serving::{Serving, changefeed, orders, out};

/// What was answered, without what the question itself had said.
fn without(detail: &str, name: &str) -> String {
    detail.replace(name, "NAME")
}

pub(crate) async fn a_definition_over_http_names_only_variables_that_are_allowed(
    backend: Arc<dyn Backend>,
) {
    let url = orders(&backend).await;
    // This one is set by what runs the tests.
    let serving = Serving::start(&url, &["--allow-env", "CARGO_PKG_NAME"]);
    let receiver = Receiver::start().await.unwrap();
    let trigger = |more: Value| {
        let mut trigger = json!({"name": "t", "table": "orders", "manual": true});
        let all = trigger.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        trigger
    };
    let hook = receiver.url("/");
    let bodies = |name: &str| {
        [
            ("/api/triggers", trigger(json!({"webhook": {"env": name}}))),
            (
                "/api/triggers",
                trigger(json!({"webhook": hook, "header": {"x": {"env": name}}})),
            ),
            (
                "/api/triggers",
                trigger(json!({"webhook": hook, "secret": {"env": name}})),
            ),
            (
                "/api/watches",
                json!({"name": "w", "table": "orders", "webhook": hook, "secret": {"env": name}}),
            ),
        ]
    };
    // One is there, one is not, one would be allowed unless said otherwise: nobody can tell.
    let names = ["CHANGEFEED_DB", "CHANGEFEED_NOT_THERE", "CHANGEFEED_HOOK_X"];
    for at in 0..bodies("").len() {
        let mut said = Vec::new();
        for name in names {
            let (path, body) = bodies(name)[at].clone();
            let posted = request("POST", path)
                .json(body.clone())
                .send(serving.at)
                .await;
            said.push(without(&posted.problem(400), name));
            if path == "/api/triggers" {
                let put = request("PUT", "/api/triggers/t").json(body);
                said.push(without(&put.send(serving.at).await.problem(400), name));
            }
        }
        said.dedup();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("which is not allowed here"), "{said:?}");
    }
    let (path, body) = bodies("CARGO_PKG_NAME")[1].clone();
    request("POST", path)
        .json(body)
        .send(serving.at)
        .await
        .json(201);
    let invoke = request("POST", "/api/triggers/t/invoke").json(json!({"payload": {}}));
    invoke.send(serving.at).await.json(201);
    let sent = receiver.wait_for(1).await.unwrap();
    assert_eq!(sent[0].header("x"), Some(env!("CARGO_PKG_NAME")));
}

pub(crate) async fn a_variable_that_was_granted_stays_in_its_place(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let receiver = Receiver::start().await.unwrap();
    let hook = receiver.url("/");
    let create = "trigger create t --table orders --manual --header-env x=CARGO_PKG_NAME --webhook";
    let create: Vec<&str> = create.split(' ').chain([hook.as_str()]).collect();
    out(&url, &create);
    let serving = Serving::start(&url, &[]);
    let delivered = |count| {
        let (receiver, at) = (&receiver, serving.at);
        async move {
            let invoke = request("POST", "/api/triggers/t/invoke").json(json!({"payload": {}}));
            invoke.send(at).await.json(201);
            let sent = receiver.wait_for(count).await.unwrap();
            let last = sent.last().unwrap();
            assert_eq!(last.header("x"), Some(env!("CARGO_PKG_NAME")));
        }
    };
    delivered(1).await;
    let mut read = get("/api/triggers/t").send(serving.at).await.json(200);
    for known in ["id", "paused", "state"] {
        read.as_object_mut().unwrap().remove(known);
    }
    let put = |body: &Value| request("PUT", "/api/triggers/t").json(body.clone());
    read["retries"] = json!(3);
    put(&read).send(serving.at).await.json(200);
    delivered(2).await;
    // Elsewhere it would be told to somebody else.
    for (field, value) in [
        ("webhook", json!(receiver.url("/elsewhere"))),
        ("header", json!({"y": {"env": "CARGO_PKG_NAME"}})),
        ("secret", json!({"env": "CARGO_PKG_NAME"})),
    ] {
        let mut moved = read.clone();
        moved[field] = value;
        let detail = put(&moved).send(serving.at).await.problem(400);
        assert!(detail.contains("CARGO_PKG_NAME"), "{detail}");
    }
    delivered(3).await;
}

pub(crate) async fn a_variable_that_nobody_granted_is_not_read(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let receiver = Receiver::start().await.unwrap();
    let definition = |name: &str, variable: &str| TriggerDefinition {
        name: name.parse().unwrap(),
        table: TableName::unqualified("orders"),
        capture: Capture {
            insert: true,
            ..Capture::default()
        },
        delivery: Delivery {
            sink: Sink::Webhook(Webhook {
                headers: vec![Header {
                    name: "x".to_owned(),
                    value: Setting::FromEnv(variable.to_owned()),
                }],
                ..Webhook::new(Setting::Value(receiver.url(&format!("/{name}"))))
            }),
            ..Delivery::default()
        },
    };
    // As an older version has written it, or somebody who may write to our tables.
    let store = backend.store().await;
    let bad = definition("bad", "CHANGEFEED_DB");
    store.create_trigger(&bad, false).await.unwrap();
    let good = definition("good", "CARGO_PKG_NAME");
    store.create_trigger(&good, false).await.unwrap();
    let app = backend.session().await;
    app.run("insert into orders values (1, 1, 'x')").await;
    let serving = Serving::start(&url, &["--allow-env", "CARGO_PKG_NAME"]);
    receiver.wait_for(1).await.unwrap();
    app.run("insert into orders values (2, 1, 'x')").await;
    let sent = receiver.wait_for(2).await.unwrap();
    assert!(sent.iter().all(|r| r.path == "/good"), "{sent:?}");
    let waiting = get("/api/events?trigger=bad&status=pending");
    let waiting = waiting.send(serving.at).await.json(200);
    assert_eq!(waiting["events"].as_array().unwrap().len(), 2, "{waiting}");
}

pub(crate) async fn a_condition_over_http_calls_nothing(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let receiver = Receiver::start().await.unwrap();
    let free = "length(new.note) > 3";
    let hook = receiver.url("/typed");
    out(
        &url,
        &[
            "trigger",
            "create",
            "typed",
            "--table",
            "orders",
            "--insert",
            "--when",
            free,
            "--webhook",
            &hook,
        ],
    );
    let serving = Serving::start(&url, &[]);
    let trigger = |name: &str, when: &str| {
        json!({"name": name, "table": "orders", "insert": true, "when": when,
               "webhook": receiver.url(&format!("/{name}"))})
    };
    let post = |body: Value| request("POST", "/api/triggers").json(body);
    let put = |body: Value| {
        let path = format!("/api/triggers/{}", body["name"].as_str().unwrap());
        request("PUT", path).json(body)
    };
    for when in [
        free,
        "pg_read_file('/etc/passwd') is not null",
        "lo_export(1, '/tmp/x') = 1 or new.id = 1",
        "new.id = (select 1)",
        "new.id = 1) or (select true",
        "new.id = 1; drop table orders",
        "new.id::text = '1'",
        "new.id operator(public.=) 1",
        "cast(new.id as text) = '1'",
        "",
    ] {
        for made in [post(trigger("t", when)), put(trigger("t", when))] {
            let detail = made.send(serving.at).await.problem(400);
            assert!(detail.contains("at character"), "{when}: {detail}");
        }
    }
    let when = "New.Note = 'it''s' AND NOT new.id in (1, 2) or old.id is distinct from null";
    let made = post(trigger("t", when)).send(serving.at).await.json(201);
    // It is written anew, and that is read as well.
    let written = made["when"].as_str().unwrap().to_owned();
    assert!(written.ends_with("or old.\"id\" is not null"), "{written}");
    let again = put(trigger("t", &written)).send(serving.at).await.json(200);
    assert_eq!(again["when"], json!(written));
    // What was typed stays as long as it is not touched.
    let mut kept = trigger("typed", free);
    kept["retries"] = json!(2);
    let kept = put(kept).send(serving.at).await.json(200);
    assert_eq!((&kept["when"], &kept["retries"]), (&json!(free), &json!(2)));
    put(trigger("typed", "length(new.note) > 2"))
        .send(serving.at)
        .await
        .problem(400);

    let app = backend.session().await;
    for id in 1..=4 {
        let note = if id == 4 { "it" } else { "it''s" };
        let sql = format!("insert into orders values ({id}, 1, '{note}')");
        app.run(&sql).await;
    }
    let paths = eventually("the events arrive", || async {
        let mut paths: Vec<String> = receiver.requests().into_iter().map(|r| r.path).collect();
        paths.sort();
        (paths.len() >= 4).then_some(paths)
    })
    .await;
    assert_eq!(paths, ["/t", "/typed", "/typed", "/typed"]);
}

/// Whoever may define feeds would otherwise read the hashes of passwords.
pub(crate) async fn a_feed_shows_no_table_of_ours_or_of_the_server(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let serving = Serving::start(&url, &[]);
    let mut refused = 0;
    for (table, column) in [
        ("pg_catalog.pg_authid", "oid"),
        ("pg_catalog.pg_shadow", "usesysid"),
        ("changefeed.access_token", "token_id"),
        ("changefeed_access_token", "token_id"),
        ("sqlite_schema", "rootpage"),
        ("sys.sql_logins", "principal_id"),
    ] {
        for source in [
            json!({"kind": "joined", "table": table, "change_id_column": column}),
            json!({"kind": "captured", "table": table}),
        ] {
            let feed = json!({"name": "stolen", "source": source});
            let answer = request("POST", "/api/feeds")
                .json(feed)
                .send(serving.at)
                .await;
            assert!(
                (400..500).contains(&answer.status),
                "{table}: {}",
                answer.body
            );
            refused += usize::from(answer.body.contains("own tables"));
        }
    }
    // The others are not there.
    assert!(refused >= 2, "{refused}");
}

pub(crate) async fn an_impossible_port_is_refused_wherever_it_is_written(
    backend: Arc<dyn Backend>,
) {
    let url = orders(&backend).await;
    let serving = Serving::start(&url, &[]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for port in ["99999", "65536", "0"] {
        let hook = format!("http://127.0.0.1:{port}/hook");
        let says = format!("the port '{port}'");
        for (path, body) in [
            (
                "/api/triggers",
                json!({"name": "t", "table": "orders", "webhook": hook}),
            ),
            (
                "/api/watches",
                json!({"name": "w", "table": "orders", "webhook": hook}),
            ),
        ] {
            let answer = request("POST", path).json(body).send(serving.at).await;
            let detail = answer.problem(400);
            assert!(detail.contains(&says), "{detail}");
        }
        let sections = [
            format!("[triggers.t]\ntable = \"orders\"\nwebhook = \"{hook}\"\n"),
            format!("[watches.w]\ntable = \"orders\"\nwebhook = \"{hook}\"\n"),
        ];
        let mut commands = vec![
            (
                None,
                vec![
                    "trigger",
                    "create",
                    "t",
                    "--table",
                    "orders",
                    "--webhook",
                    &hook,
                ],
            ),
            (
                None,
                vec![
                    "watch",
                    "create",
                    "w",
                    "--table",
                    "orders",
                    "--webhook",
                    &hook,
                ],
            ),
        ];
        for section in &sections {
            commands.push((Some(section), vec!["apply", path]));
        }
        for (written, args) in commands {
            if let Some(text) = written {
                std::fs::write(path, text).unwrap();
            }
            let output = changefeed(&url, &args).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{args:?}");
            assert!(said.contains(&says), "{args:?}: {said}");
        }
    }
}
