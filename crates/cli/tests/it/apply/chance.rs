//! Definitions by chance: whatever was applied, applying it again finds nothing to do, from whatever
//! there was before.

use std::fmt::Write;

use fastrand::Rng;

use crate::apply::on_every_database;

#[test]
fn applied_again_there_is_nothing_to_do() {
    let seed = match std::env::var("CHANGEFEED_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    };
    println!("CHANGEFEED_SEED={seed}");
    on_every_database(async |stage| {
        let mut chance = Rng::with_seed(seed);
        for _ in 0..6 {
            let text = file(&mut chance);
            println!("---\n{text}");
            stage.write(&text);
            // What cannot be changed has to go first.
            if stage.run("apply --prune --check").code == 2 {
                stage.write("");
                stage.out("apply --prune --yes");
                stage.write(&text);
            }
            stage.out("apply --prune --yes");
            assert_eq!(stage.out("apply --prune"), "nothing to do\n");
            // And nothing of it is in the application's way.
            stage
                .app
                .run("insert into orders values (1, 7, 'new', 'x'); delete from orders;")
                .await;
        }
    });
}

fn file(chance: &mut Rng) -> String {
    let mut text = String::new();
    for name in ["a", "b"] {
        if chance.bool() {
            feed(chance, name, &mut text);
        }
    }
    for name in ["t", "u"] {
        if chance.u8(..4) > 0 {
            trigger(chance, name, &mut text);
        }
    }
    for name in ["v", "w"] {
        if chance.bool() {
            watch(chance, name, &mut text);
        }
    }
    text
}

/// Writes one of these lines, or none of them.
fn maybe(chance: &mut Rng, text: &mut String, lines: &[&str]) {
    if let Some(line) = lines.get(chance.usize(..=lines.len())) {
        writeln!(text, "{line}").unwrap();
    }
}

fn feed(chance: &mut Rng, name: &str, text: &mut String) {
    writeln!(text, "[feeds.{name}]").unwrap();
    match chance.u8(..3) {
        0 => {}
        1 => {
            text.push_str("from = \"orders\"\nshard_by = \"customer_id\"\n");
            maybe(chance, text, &["shards = 2", "shards = 3"]);
        }
        _ => text.push_str("rows = \"orders\"\nchange_id_column = \"customer_id\"\n"),
    }
    maybe(chance, text, &["sweep_group = 0", "sweep_group = 4"]);
    maybe(chance, text, &["start = 0", "start = 77"]);
    maybe(
        chance,
        text,
        &[
            "comment = \"\"",
            "comment = 'is \"so\"'",
            "comment = \"ö\\n\"",
        ],
    );
}

fn trigger(chance: &mut Rng, name: &str, text: &mut String) {
    writeln!(text, "[triggers.{name}]\ntable = \"orders\"").unwrap();
    maybe(chance, text, &["insert = true", "insert = false"]);
    maybe(
        chance,
        text,
        &[
            "update = true",
            "update = [\"status\", \"note\"]",
            "update = \"note\"",
        ],
    );
    maybe(chance, text, &["delete = true"]);
    maybe(chance, text, &["manual = true"]);
    maybe(chance, text, &["payload = [\"id\", \"note\"]"]);
    // Nothing can be said about a row that is only there in some of the operations.
    maybe(chance, text, &["when = \"1 = 1\""]);
    let targets = [
        "in_process = true",
        "webhook = \"http://x.example/a?b=c\"",
        "webhook = { env = \"URL\" }",
    ];
    let target = targets[chance.usize(..targets.len())];
    writeln!(text, "{target}").unwrap();
    if target.starts_with("webhook") {
        maybe(
            chance,
            text,
            &[
                "header = { X-B = \"1\", X-A = { env = \"B\" } }",
                "header = {}",
            ],
        );
        maybe(
            chance,
            text,
            &[
                "secret = { env = \"S\" }",
                "secret = [{ env = \"S\" }, { env = \"T\" }]",
            ],
        );
    }
    maybe(
        chance,
        text,
        &["format = \"hasura\"", "format = \"cloudevents-binary\""],
    );
    maybe(chance, text, &["retries = 0", "retries = 12"]);
    maybe(
        chance,
        text,
        &["interval = \"1500ms\"", "interval = 2", "interval = 0.1"],
    );
    maybe(chance, text, &["timeout = \"1m\"", "timeout = \"3s 7ms\""]);
    maybe(chance, text, &["backoff = \"1h\""]);
    maybe(
        chance,
        text,
        &["final_status = []", "final_status = [400, 422]"],
    );
    maybe(chance, text, &["max_retry_after = \"2h\""]);
    maybe(
        chance,
        text,
        &["concurrency = 3", "concurrency_overall = 9"],
    );
    maybe(
        chance,
        text,
        &[
            "in_order = true",
            "in_order = \"customer_id\"",
            "in_order = false",
        ],
    );
    maybe(
        chance,
        text,
        &["feed = \"events\"", "feed = \"events\"\nshard_by = \"id\""],
    );
    maybe(
        chance,
        text,
        &[
            "clean_up_after = \"7d\"",
            "clean_up_after = \"1h\"\nclean_up_dead_letters = true",
        ],
    );
    maybe(chance, text, &["paused = true", "paused = false"]);
}

fn watch(chance: &mut Rng, name: &str, text: &mut String) {
    writeln!(text, "[watches.{name}]\ntable = \"orders\"").unwrap();
    match chance.bool() {
        true => text.push_str("exec = \"cat > /dev/null\"\n"),
        false => text.push_str("webhook = \"http://x.example/\"\nsecret = { env = \"S\" }\n"),
    }
    maybe(chance, text, &["max_changes_per_worker = 7"]);
    maybe(
        chance,
        text,
        &["with_version = true", "with_columns = true"],
    );
    maybe(chance, text, &["batch = 1", "batch = 10_000"]);
    maybe(chance, text, &["retry_interval = \"20ms\""]);
    maybe(chance, text, &["polling_interval = \"1m\""]);
    maybe(
        chance,
        text,
        &["on = [\"insert\"]", "on = [\"delete\", \"update\"]"],
    );
    maybe(
        chance,
        text,
        &["lease = \"8s\"", "lease = \"61s\"\nrenewal = \"20s\""],
    );
    maybe(chance, text, &["attempts = 1"]);
    maybe(chance, text, &["from = \"now\"", "from = \"beginning\""]);
}
