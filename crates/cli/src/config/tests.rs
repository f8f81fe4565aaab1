//! The file that is both default and reference says what the program really does.

use std::collections::BTreeMap;

use changefeed::WatchSettings;
use clap::Command;
use clap::builder::ArgAction;
use toml::de::{DeTable, DeValue};

use super::section::{command, keys};
use super::*;
use crate::args::DEFAULT_DATABASE;

/// The example with every key set, and the lines whose keys have no default.
fn everything_set() -> (String, Vec<String>) {
    let mut text = String::new();
    let mut without_default = Vec::new();
    for line in EXAMPLE.lines() {
        let is_key = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[');
        let line = match line.strip_prefix('#') {
            Some(rest) if is_key(rest) => rest,
            _ => line,
        };
        if let Some(key) = line.strip_suffix("# no default") {
            without_default.push(key.trim().to_owned());
        }
        text.push_str(line);
        text.push('\n');
    }
    (text, without_default)
}

struct Reference {
    name: &'static str,
    section: &'static str,
    command: Command,
    without: Vec<String>,
}

fn references() -> Vec<Reference> {
    let nested = ["http", "deliver"].map(ids_of_section).concat();
    let without = |more: &[&str]| -> Vec<String> { more.iter().map(|s| (*s).to_owned()).collect() };
    let reference = |name, section, command, without| Reference {
        name,
        section,
        command,
        without,
    };
    let definitions = || without(NOT_OF_DEFINITIONS);
    vec![
        reference(
            "serve",
            "",
            command::<Serve>(),
            [nested, without(NOT_OF_SERVE)].concat(),
        ),
        reference("http", "", command::<Http>(), Vec::new()),
        reference("deliver", "", command::<Deliver>(), Vec::new()),
        reference("feeds", "orders", command::<CreateFeed>(), definitions()),
        reference(
            "triggers",
            "paid",
            command::<CreateTrigger>(),
            definitions(),
        ),
        reference("watches", "mail", command::<WatchCreate>(), definitions()),
        reference(
            "subscriptions",
            "bus",
            command::<SubscriptionCreate>(),
            definitions(),
        ),
    ]
}

/// Defaults that are not on the command line, because something is derived from their absence.
fn told_elsewhere(section: &str, key: &str) -> Option<String> {
    let watch = WatchSettings::default();
    let time = |time| format!("\"{}\"", humantime::format_duration(time));
    Some(match (section, key) {
        ("watches", "batch") => watch.batch.to_string(),
        ("watches", "polling_interval") => "\"0s\"".to_owned(),
        ("watches", "retry_interval") => time(watch.retry_interval),
        ("watches", "lease") => "\"60s\"".to_owned(),
        ("watches", "renewal") => time(watch.renewal),
        ("watches", "attempts") => watch.attempts.to_string(),
        ("watches", "max_changes_per_worker") => changefeed::CHANGES_PER_WORKER.to_string(),
        ("triggers", "concurrency") => changefeed::Delivery::CONCURRENCY.to_string(),
        _ => return None,
    })
}

/// What the program does without a key, as TOML; none if there is nothing.
fn default_of(reference: &Reference, key: &str) -> Option<String> {
    if let Some(told) = told_elsewhere(reference.name, key) {
        return Some(told);
    }
    let arg = reference
        .command
        .get_arguments()
        .find(|arg| arg.get_id() == key)?;
    let values: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|v| v.to_string_lossy().into_owned())
        .collect();
    match (arg.get_action(), values.as_slice()) {
        (ArgAction::SetTrue, _) => Some("false".to_owned()),
        (ArgAction::Append, []) if !arg.is_required_set() => Some("[]".to_owned()),
        (ArgAction::Append, [value]) => Some(format!("[\"{value}\"]")),
        (_, [value]) if value.parse::<i64>().is_ok() => Some(value.clone()),
        (_, [value]) => Some(format!("\"{value}\"")),
        // A flag that may have a value: nothing is the same as false.
        _ if arg.get_num_args().is_some_and(|n| n.min_values() == 0) => Some("false".to_owned()),
        _ => None,
    }
}

#[test]
fn the_example_is_a_file_that_changes_nothing() {
    let config = Config::parse("changefeed.toml", EXAMPLE).unwrap();
    assert!(config.feeds.is_empty() && config.triggers.is_empty() && config.watches.is_empty());
    assert!(config.subscriptions.is_empty());
    assert_eq!(
        config.database().unwrap().as_deref(),
        Some(DEFAULT_DATABASE)
    );
    assert_eq!(
        WatchSettings::default().lease,
        std::time::Duration::from_secs(60)
    );
}

#[test]
fn every_key_is_in_the_example_with_its_default() {
    let (text, without_default) = everything_set();
    let document = DeTable::parse(&text).unwrap().into_inner();
    for reference in references() {
        let mut section = document[reference.name].get_ref();
        if !reference.section.is_empty() {
            section = section.get(reference.section).unwrap().get_ref();
        }
        let DeValue::Table(section) = section else {
            panic!("{} is no section", reference.name)
        };
        let written: BTreeMap<&str, &str> = section
            .iter()
            .map(|(key, value)| (&**key.get_ref(), &text[value.span()]))
            .collect();
        let without: Vec<&str> = reference.without.iter().map(String::as_str).collect();
        let mut known = keys(&reference.command, &without);
        known.sort();
        let mut there: Vec<&str> = written.keys().copied().collect();
        there.sort_unstable();
        assert_eq!(there, known, "[{}]", reference.name);
        for (key, value) in written {
            let line = format!("{key} = {value}");
            match default_of(&reference, key) {
                // `header` is a table, and nothing is not an empty one.
                Some(default) if default != "[]" || value.starts_with('[') => {
                    assert_eq!(value, default, "{key} in [{}]", reference.name);
                    assert!(!without_default.contains(&line), "{line} has a default");
                }
                _ => assert!(
                    without_default.contains(&line),
                    "'{line}' is not marked as without a default"
                ),
            }
        }
    }
}

#[test]
fn what_is_typed_goes_before_the_file() {
    use clap::{CommandFactory, FromArgMatches};

    use crate::args::{Args, Command};

    let config = Config::parse(
        "x.toml",
        "[serve]\nonly = [\"http\", \"sweep\"]\nallow_exec = true\n\
         [http]\nlisten = \"127.0.0.1:1\"\ncors_origin = [\"a\", \"b\"]\n\
         [deliver]\nlease = \"5s\"",
    )
    .unwrap();
    let serve = |typed: &[&str]| {
        let line = ["changefeed", "serve"].iter().chain(typed);
        let matches = config.below(Args::command()).get_matches_from(line);
        match Args::from_arg_matches(&matches).unwrap().command {
            Command::Serve(serve) => *serve,
            other => panic!("{other:?}"),
        }
    };
    let untouched = serve(&[]);
    assert_eq!(untouched.http.listen.port(), 1);
    assert_eq!(untouched.http.cors_origin, ["a", "b"]);
    assert_eq!(untouched.only.len(), 2);
    assert!(untouched.allow_exec);
    assert_eq!(untouched.deliver.lease.as_secs(), 5);
    assert_eq!(untouched.http.max_body, 1024 * 1024);
    let typed = serve(&[
        "--listen",
        "127.0.0.1:2",
        "--cors-origin",
        "c",
        "--lease",
        "6s",
    ]);
    assert_eq!(typed.http.listen.port(), 2);
    assert_eq!(typed.http.cors_origin, ["c"]);
    assert_eq!(typed.deliver.lease.as_secs(), 6);
}

/// A bad file, and the exact sentence.
const BAD: &[(&str, &str)] = &[
    (
        "a = ",
        "x.toml:1:5: this is not TOML: string values must be quoted, expected literal string",
    ),
    (
        "[http]\nlisten = \"1\"\n[http]",
        "x.toml:3:2: this is not TOML: duplicate key",
    ),
    (
        "url = 1",
        "x.toml:1:1: 'url' stands in no section: the sections are database, secrets, serve, http, deliver, feeds, triggers, watches",
    ),
    (
        "[databse]",
        "x.toml:1:2: there is no section [databse]: did you mean 'database'?",
    ),
    (
        "[database]\nurl = 5",
        "x.toml:2:7: 'url' is a text, { env = \"NAME\" } or { file = \"PATH\" }, and nothing else",
    ),
    (
        "[database]\nuri = \"x\"",
        "x.toml:2:1: there is no key 'uri' in [database]: did you mean 'url'?",
    ),
    (
        "database = 5",
        "x.toml:1:12: 'database' is a section: write [database]",
    ),
    (
        "[secrets]\nA = \"whsec_abc\"",
        "x.toml:2:5: the secret 'A' is not written in this file: write { env = \"NAME\" } or { file = \"PATH\" }",
    ),
    (
        "[http]\nlissten = \"\"",
        "x.toml:2:1: there is no key 'lissten' in [http]: did you mean 'listen'?",
    ),
    (
        "[http]\nbanana = 1",
        "x.toml:2:1: there is no key 'banana' in [http]: the keys are listen, tls_cert, tls_key, cors_origin, allow_host, max_body, max_requests, max_waiting, request_timeout, keep_alive",
    ),
    (
        "[http]\n  listen = \"8787\"",
        "x.toml:2:12: 'listen' does not fit: '8787' is not an address: write an IP address and a port, like 127.0.0.1:8787",
    ),
    (
        "[http]\nmax_requests = 0",
        "x.toml:2:16: 'max_requests' does not fit: 0 is not in 1..=100000",
    ),
    (
        "[http]\nkeep_alive = \"soon\"",
        "x.toml:2:14: 'keep_alive' does not fit: 'soon' is not a duration: use a number with a unit, like 500ms, 2s or 7d; a number alone is seconds",
    ),
    (
        "[http]\ntls_cert = \"a\"",
        "x.toml:1:1: [http] lacks tls_key",
    ),
    (
        "[serve]\nallow_exec = \"yes\"",
        "x.toml:2:14: 'allow_exec' is true or false",
    ),
    (
        "[serve]\nonly = [\"sweeping\"]",
        "x.toml:2:8: 'sweeping' does not fit 'only': it is one of sweep, deliver, watch, push, http",
    ),
    (
        "[serve]\ndemo = true",
        "x.toml:2:1: there is no key 'demo' in [serve]: the keys are only, allow_exec, allow_files",
    ),
    (
        "[feeds]\nshards = 2",
        "x.toml:2:1: 'shards' has no name above it: write [feeds.NAME] and its keys below",
    ),
    (
        "[feeds.orders]\nshard = 2",
        "x.toml:2:1: there is no key 'shard' in [feeds.orders]: did you mean 'shards'?",
    ),
    (
        "[feeds.orders]\nshards = 0",
        "x.toml:2:10: 'shards' does not fit: 0 is not in 1..=32767",
    ),
    (
        "[feeds.orders]\nshards = 99999999999999999999",
        "x.toml:2:10: 'shards' is too large a number",
    ),
    (
        "[feeds.orders]\nfrom = \"a\"\nrows = \"b\"",
        "x.toml:2:8: 'from' and 'rows' do not go together",
    ),
    (
        "[feeds.orders]\nfrom = { env = \"X\" }",
        "x.toml:2:8: 'from' is a text or a number",
    ),
    (
        "[feeds.\"a b\"]",
        "x.toml:1:8: 'a b' is not a feed name: use 1 to 100 letters, digits, '_' and '-'",
    ),
    (
        "[triggers.t]\nwebhook = \"http://x\"",
        "x.toml:1:11: [triggers.t] lacks table",
    ),
    (
        "[triggers.t]\ntable = \"a\"",
        "x.toml:1:11: [triggers.t] lacks webhook or in_process",
    ),
    (
        "[triggers.t]\ntable = \"a\"\nin_process = true\nshard_by = \"a\"",
        "x.toml:1:11: [triggers.t] lacks feed",
    ),
    (
        "[triggers.t]\ntable = \"a\"\nin_process = true\nsecret = \"whsec_abc\"",
        "x.toml:4:10: 'secret' is a secret, or comes from elsewhere: write { env = \"NAME\" }",
    ),
    (
        "[triggers.t]\ntable = \"a\"\nin_process = true\nsecret = { file = \"s\" }",
        "x.toml:4:10: 'secret' is kept in the database by the name of a variable: write { env = \"NAME\" }, and NAME = { file = \"PATH\" } in [secrets]",
    ),
    (
        "[triggers.t]\ntable = \"a\"\nin_process = true\nheader = [\"a\"]",
        "x.toml:4:10: 'header' is a table, like { X-Team = \"shop\" }",
    ),
    (
        "[triggers.t]\ntable = \"a\"\nin_process = true\nformat = \"xml\"",
        "x.toml:4:10: 'xml' does not fit 'format': it is one of hasura, cloudevents, cloudevents-binary",
    ),
    (
        "[triggers.t]\ntable = \"a\"\nin_process = true\nreplace = true",
        "x.toml:4:1: there is no key 'replace' in [triggers.t]: the keys are table",
    ),
    (
        "[watches.w]\ntable = \"a\"\nexec = \"x\"\nwebhook = \"http://x\"",
        "x.toml:3:8: 'exec' and 'webhook' do not go together",
    ),
    (
        "[watches.w]\ntable = \"a\"\nbatch = 0",
        "x.toml:3:9: 'batch' does not fit: a batch of 0 rows is not possible: use 1 to 10000",
    ),
    (
        "[watches.w]\ntable = \"a\"\nfrom = \"then\"",
        "x.toml:3:8: 'from' does not fit: 'then' is no place to begin: use 'now' or 'beginning'",
    ),
];

#[test]
fn a_bad_file_is_refused_with_a_sentence_and_a_place() {
    let mut wrong = Vec::new();
    for (text, sentence) in BAD {
        let said = match Config::parse("x.toml", text) {
            Ok(_) => "nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        if !said.starts_with(sentence) || said.contains("whsec_abc") || said.contains('\n') {
            wrong.push(format!(
                "{text}\n  should say {sentence}\n  says       {said}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
