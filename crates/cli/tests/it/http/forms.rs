//! One thing has one form: the program prints the same objects as HTTP.

use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;
use serde_json::Value;

use crate::http::serving::{Serving, out, shop};

/// What may differ between two looks: ages, and what was counted in between.
fn still(mut value: Value) -> Value {
    match &mut value {
        Value::Object(object) => {
            let moves = |key: &str| {
                key.ends_with("_ms")
                    || key.ends_with("rate")
                    || ["version", "instance", "sampled_at", "connections"].contains(&key)
            };
            object.retain(|key, _| !moves(key) || key == "last_sync_version");
            for value in object.values_mut() {
                *value = still(value.take());
            }
        }
        Value::Array(array) => {
            for value in array {
                *value = still(value.take());
            }
        }
        _ => {}
    }
    value
}

fn printed(url: &str, command: &str) -> Vec<Value> {
    let args: Vec<&str> = command.split(' ').chain(["--json"]).collect();
    out(url, &args)
        .lines()
        .map(|line| still(serde_json::from_str(line).unwrap()))
        .collect()
}

async fn answered(serving: &Serving, path: &str) -> Value {
    still(serving.get(path).await.json(200))
}

pub(crate) async fn the_program_and_http_print_the_same_objects(backend: Arc<dyn Backend>) {
    let (url, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    let commands = [
        "trigger create paid --table orders --webhook http://u:p@127.0.0.1:9/x --header-env X=Y \
         --update note --in-order --retries 3 --interval 1h --backoff 2h --clean-up-after 30d",
        "trigger create quiet --table orders --in-process",
        "watch create mail --table orders --exec true --lease 20s --with-version",
        "watch create post --table orders --webhook http://u:p@127.0.0.1:9/ --header a=b",
        "consumer set reader --feed orders --cursor 2000000000000000",
    ];
    for command in commands {
        out(&url, &command.split_whitespace().collect::<Vec<_>>());
    }
    app.run("insert into orders values (1, 1, 'x')").await;
    app.run("update orders set note = 'y'").await;
    for (command, path, list) in [
        ("feed list", "/api/feeds", "feeds"),
        ("consumer list", "/api/consumers", "consumers"),
        ("trigger list", "/api/triggers", "triggers"),
        ("event list", "/api/events", "events"),
        ("watch list", "/api/watches", "watches"),
        ("token list", "/api/tokens", "tokens"),
        ("trigger show paid", "/api/triggers/paid", ""),
        ("watch show mail", "/api/watches/mail", ""),
        ("watch show post", "/api/watches/post", ""),
    ] {
        // What is being worked on meanwhile may be seen before and after.
        eventually("the program and HTTP say the same", || async {
            let http = answered(&serving, path).await;
            let http = match list {
                "" => vec![http],
                list => http[list].as_array().unwrap().clone(),
            };
            assert!(list == "tokens" || !http.is_empty(), "{path}");
            let program = printed(&url, command);
            if program != http {
                eprintln!("{command}: {program:#?}\n{path}: {http:#?}");
            }
            (program == http).then_some(())
        })
        .await;
    }
    let events = printed(&url, "event list");
    let id = events[0]["id"].as_str().unwrap();
    let path = format!("/api/events/{id}");
    eventually("an event looks the same", || async {
        let program = printed(&url, &format!("event show {id}"));
        (program == [answered(&serving, &path).await]).then_some(())
    })
    .await;
    assert!(events[0]["change_id"].is_string());
    assert_eq!(
        events[0]["table"],
        printed(&url, "trigger show paid")[0]["table"]
    );
    eventually("a sample is what the program sees", || async {
        let program = printed(&url, "status");
        let http = answered(&serving, "/api/status").await;
        (program == [http]).then_some(())
    })
    .await;
}

pub(crate) async fn errors_are_json_where_everything_is(backend: Arc<dyn Backend>) {
    let (url, serving) = shop(&backend, &[]).await;
    let mut command = crate::http::serving::changefeed(&url, &["feed", "read", "nosuch", "--json"]);
    let output = command.env("RUST_LOG", "error").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&output.stderr).unwrap();
    let http = serving.get("/api/feeds/nosuch").await;
    let http: Value = serde_json::from_str(&http.body).unwrap();
    for key in ["kind", "detail"] {
        assert_eq!(said[key], http[key]);
    }
}
