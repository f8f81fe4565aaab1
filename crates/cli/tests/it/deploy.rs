//! What lies in `deploy/` fits the program.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use promql_parser::label::Labels;
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use serde_json::Value;

/// The documented metrics and their labels. That they are what the program shows is tested elsewhere.
fn documented() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let table = include_str!("../../../../docs/metrics.md");
    table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(metric, _)| match metric.split_once('{') {
            Some((name, labels)) => (name, labels.trim_end_matches('}').split(',').collect()),
            None => (metric, BTreeSet::new()),
        })
        .collect()
}

#[test]
fn grafana_asks_for_metrics_that_exist() {
    let metrics = documented();
    assert!(metrics.len() > 30, "the documentation was not understood");
    let board: Value =
        serde_json::from_str(include_str!("../../../../deploy/grafana.json")).unwrap();
    let mut asked = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = target["expr"].as_str().unwrap();
            asked.extend(asked_for(&text.replace("$__rate_interval", "1m"), &metrics));
        }
    }
    assert!(asked.len() > 20, "most metrics are on the board: {asked:?}");
}

/// The metrics that a query asks for. All of them exist, with the labels that it uses.
fn asked_for(
    query: &str,
    metrics: &BTreeMap<&'static str, BTreeSet<&'static str>>,
) -> BTreeSet<String> {
    let expression = parser::parse(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    let mut seen = Seen::default();
    seen.look(&expression);
    assert!(!seen.metrics.is_empty(), "{query} asks for nothing");
    let mut asked = BTreeSet::new();
    for metric in &seen.metrics {
        // What Prometheus itself says about a scrape.
        if metric == "up" {
            continue;
        }
        let base = metric.strip_suffix("_bucket").unwrap_or(metric);
        let labels = metrics
            .get(base)
            .unwrap_or_else(|| panic!("{query}: there is no {metric}"));
        for label in &seen.labels {
            assert!(
                labels.contains(label.as_str()) || ["le", "instance"].contains(&&**label),
                "{query}: {metric} has no {label}"
            );
        }
        asked.insert(base.to_owned());
    }
    asked
}

const ALERTS: &str = include_str!("../../../../deploy/prometheus/alerts.yaml");

#[test]
fn alerts_ask_for_metrics_that_exist() {
    let metrics = documented();
    let mut asked = BTreeSet::new();
    for line in ALERTS.lines() {
        if let Some(query) = line.trim().strip_prefix("expr: ") {
            asked.extend(asked_for(query, &metrics));
        }
    }
    assert!(asked.len() > 10, "{asked:?}");
    // What the documentation says about them is what they ask.
    let guide = include_str!("../../../../docs/metrics.md");
    let told = guide.lines().filter_map(|line| {
        let (_, query) = line.strip_prefix("- ")?.split_once(": `")?;
        query.strip_suffix('`')
    });
    let told: Vec<_> = told.collect();
    assert!(told.len() > 5, "{told:?}");
    for query in told {
        asked_for(query, &metrics);
    }
}

/// Prometheus' own tool evaluates the alerts on series that are made up.
#[test]
fn alerts_fire_when_they_should() {
    let tests = include_str!("../../../../deploy/prometheus/alerts.test.yaml");
    for line in ALERTS.lines() {
        if let Some(alert) = line.trim().strip_prefix("- alert: ") {
            let fires = format!("alertname: {alert}\n        exp_alerts:\n");
            assert!(tests.contains(&fires), "no test shows when {alert} fires");
            let silent = format!("alertname: {alert}, exp_alerts: []");
            assert!(
                tests.contains(&silent),
                "no test shows when {alert} is silent"
            );
        }
    }
    let tool = std::env::var_os("CHANGEFEED_TEST_PROMTOOL").unwrap_or_else(|| "promtool".into());
    if tool == "none" {
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus");
    let output = Command::new(&tool)
        .args(["test", "rules", "alerts.test.yaml"])
        .current_dir(folder)
        .output()
        .expect(
            "CHANGEFEED_TEST_PROMTOOL names Prometheus' promtool, or is `none`; ./test does that",
        );
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{said}");
}

/// Kubernetes' own schemas judge the manifests, and what names something names what is there.
#[test]
fn kubernetes_understands_the_manifests() {
    let python = std::env::var_os("CHANGEFEED_TEST_PYTHON")
        .expect("./test names a Python with crates/testkit/python/requirements.txt");
    let output = Command::new(python)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../testkit/python/kubernetes.py"
        ))
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../deploy/kubernetes"
        ))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{said}");
    // The query of the autoscaler is typed by the test of this guide.
    let guide = include_str!("../../../../docs/guides/scaling-out.md");
    let query = KEDA
        .lines()
        .find_map(|line| line.trim().strip_prefix("query: "));
    assert!(guide.contains(query.unwrap()));
}

const KUBERNETES: &str = include_str!("../../../../deploy/kubernetes/changefeed.yaml");
const KEDA: &str = include_str!("../../../../deploy/kubernetes/keda.yaml");

#[derive(Default)]
struct Seen {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
}

impl Seen {
    fn look(&mut self, expression: &Expr) {
        match expression {
            Expr::Aggregate(aggregate) => {
                if let Some(LabelModifier::Include(Labels { labels })) = &aggregate.modifier {
                    self.labels.extend(labels.iter().cloned());
                }
                self.look(&aggregate.expr);
            }
            Expr::Call(call) => call.args.args.iter().for_each(|arg| self.look(arg)),
            Expr::MatrixSelector(matrix) => self.select(&matrix.vs),
            Expr::VectorSelector(vector) => self.select(vector),
            Expr::Binary(binary) => {
                self.look(&binary.lhs);
                self.look(&binary.rhs);
            }
            Expr::NumberLiteral(_) => {}
            other => panic!("the board has become more clever than this test: {other:?}"),
        }
    }

    fn select(&mut self, vector: &VectorSelector) {
        self.metrics.extend(vector.name.clone());
        if vector.name.as_deref() != Some("up") {
            let matchers = vector.matchers.matchers.iter();
            self.labels
                .extend(matchers.map(|matcher| matcher.name.clone()));
        }
    }
}

/// Commands in what is deployed are understood: each is given with an option that does not exist, and
/// that is the only thing which the program does not understand.
#[test]
fn what_is_deployed_calls_commands_that_exist() {
    let mut calls = vec![
        include_str!("../../../../deploy/changefeed.service")
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/changefeed "))
            .expect("the unit starts the program")
            .to_owned(),
    ];
    for file in [
        include_str!("../../../../Dockerfile"),
        include_str!("../../../../deploy/postgres.compose.yaml"),
        include_str!("../../../../deploy/sqlserver.compose.yaml"),
        KUBERNETES,
        KEDA,
    ] {
        let lines = file.lines().map(str::trim);
        for line in lines.filter(|line| !line.starts_with('#')) {
            let list = ["CMD ", "command: ", "args: "];
            let list = list.iter().find_map(|key| line.strip_prefix(key));
            if let Some(list) = list.filter(|list| list.starts_with('[')) {
                let words: Vec<String> = serde_json::from_str(list).unwrap();
                // Others are of other programs.
                if ["serve", "migrate"].contains(&&*words[0]) {
                    calls.push(words.join(" "));
                }
            } else if let Some((_, call)) = line.split_once("changefeed token ") {
                calls.push(format!("token {}", call.split(" |").next().unwrap()));
            }
        }
    }
    assert!(calls.len() >= 9, "{calls:?}");
    for call in calls {
        let output = Command::new(env!("CARGO_BIN_EXE_changefeed"))
            .args(call.split(' '))
            .arg("--no-such-option")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("unexpected argument '--no-such-option'"),
            "changefeed {call}: {said}"
        );
    }
}

/// What is deployed gives the program the time that it takes to stop: `--grace` for what is under way, and
/// fifteen seconds to write down what became of it.
#[test]
fn what_is_deployed_waits_for_the_program_to_stop() {
    let help = Command::new(env!("CARGO_BIN_EXE_changefeed"))
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let grace = help.split("--grace").nth(1).unwrap();
    let grace = grace.split("[default: ").nth(1).unwrap();
    let grace: u64 = grace.split('s').next().unwrap().parse().unwrap();
    let needed = grace + 15;
    let unit = include_str!("../../../../deploy/changefeed.service");
    let mut times: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("TimeoutStopSec="))
        .collect();
    for file in [
        include_str!("../../../../deploy/postgres.compose.yaml"),
        include_str!("../../../../deploy/sqlserver.compose.yaml"),
    ] {
        let lines = file.lines().map(str::trim);
        times.extend(lines.filter_map(|line| line.strip_prefix("stop_grace_period: ")));
    }
    for file in [KUBERNETES, KEDA] {
        let lines = file.lines().map(str::trim);
        let key = "terminationGracePeriodSeconds: ";
        times.extend(lines.filter_map(|line| line.strip_prefix(key)));
    }
    assert!(times.len() >= 5, "{times:?}");
    for time in times {
        let seconds: u64 = time.trim_end_matches('s').parse().unwrap();
        assert!(seconds > needed, "{seconds} s, but it may take {needed} s");
    }
}

#[test]
fn the_development_container_runs_the_gate() {
    let container = include_str!("../../../../.devcontainer/devcontainer.json");
    let container: Value = serde_json::from_str(container).unwrap();
    let command = container["postCreateCommand"].as_str().unwrap();
    assert!(command.ends_with("./test quick"), "{command}");
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let written = Command::new(env!("CARGO_BIN_EXE_changefeed"))
        .args(["man", "--directory"])
        .arg(directory.path())
        .status()
        .unwrap();
    assert!(written.success());
    for page in [
        "changefeed.1",
        "changefeed-serve.1",
        "changefeed-feed-create.1",
    ] {
        let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}: {text}");
    }
    let printed = Command::new(env!("CARGO_BIN_EXE_changefeed"))
        .arg("man")
        .output()
        .unwrap();
    let page = std::fs::read(directory.path().join("changefeed.1")).unwrap();
    assert!(printed.stdout == page, "what is printed is what is written");
    let refused = Command::new(env!("CARGO_BIN_EXE_changefeed"))
        .args(["man", "--directory", "/nowhere/at/all"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("'/nowhere/at/all' cannot be written to")
    );
}
