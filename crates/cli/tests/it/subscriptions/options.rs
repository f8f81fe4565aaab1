//! What a subscription can be told, as a user tells it: which rows and columns, how long to collect, what to do about a
//! refusal, how far behind it may be, and what is said of a sink that is away.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use changefeed_receiver::{Receiver, Reply};
use changefeed_testkit::backend::{Backend, eventually_true, on_every_backend};
use changefeed_testkit::process::Running;
use changefeed_testkit::run;
use serde_json::Value;

use crate::watches::{changefeed, json_lines, out};

struct Scene {
    backend: Arc<dyn Backend>,
    url: String,
    app: Box<dyn changefeed_testkit::backend::Session>,
    dir: tempfile::TempDir,
}

impl Scene {
    /// A table, its feed with images, and a subscription with these options; `DIR` is a directory.
    async fn new(backend: Arc<dyn Backend>) -> Scene {
        backend.installed().await;
        let app = backend.session().await;
        app.run(
            "create table orders (id integer primary key, status varchar(20), note varchar(20))",
        )
        .await;
        let scene = Scene {
            url: backend.url(),
            backend,
            app,
            dir: tempfile::tempdir().unwrap(),
        };
        scene.ok(&["feed", "create", "orders", "--from", "orders", "--images"]);
        scene
    }

    fn ok(&self, args: &[&str]) {
        let (code, _, errors) = out(&self.url, args);
        assert_eq!(code, 0, "{args:?}: {errors}");
    }

    fn subscribe(&self, name: &str, to: &str, options: &[&str]) {
        let args = [
            "subscription",
            "create",
            name,
            "--feed",
            "orders",
            "--to",
            to,
        ];
        self.ok(&[&args[..], options].concat());
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn serve(&self) -> Running {
        self.serve_with(&[])
    }

    fn serve_with(&self, environment: &[(&str, &str)]) -> Running {
        let dir = self.dir.path().to_str().unwrap();
        let args = [
            "serve",
            "--only",
            "push,sweep",
            "--allow-exec",
            "--allow-files",
            dir,
        ];
        let mut command = changefeed(&self.url, &args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.envs(environment.iter().copied());
        Running::start(&mut command)
    }

    async fn write(&self, from: i64, to: i64, status: &str) {
        for id in from..=to {
            let insert = format!("insert into orders values ({id}, '{status}', 'n')");
            self.app.run(&insert).await;
        }
    }

    fn show(&self, name: &str) -> Value {
        json_lines(&self.url, &["subscription", "show", name, "--json"]).remove(0)
    }
}

fn lines(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

fn on_each(case: impl AsyncFn(Scene)) {
    run(async {
        on_every_backend(async |backend| case(Scene::new(backend).await).await).await;
    });
}

#[test]
fn a_sink_gets_some_rows_and_some_columns_in_batches() {
    on_each(async |scene| {
        let file = scene.path("paid");
        let filter = ["--when", "status = 'paid'", "--columns", "id,status"];
        scene.subscribe("paid", &format!("file:{file}"), &filter);
        let counts = scene.path("counts");
        let count = format!("exec:wc -l >> {counts}");
        scene.subscribe("slow", &count, &["--every", "1500ms", "--batch", "500"]);
        let refused = [
            "subscription",
            "create",
            "x",
            "--feed",
            "orders",
            "--to",
            "stdout:",
        ];
        let (code, _, errors) = out(
            &scene.url,
            &[&refused[..], &["--when", "now() > 1"]].concat(),
        );
        assert_eq!(code, 2, "{errors}");
        let _serve = scene.serve();
        scene.write(1, 3, "new").await;
        scene
            .app
            .run("update orders set status = 'paid' where id = 2")
            .await;
        // Nothing that is shown has changed.
        scene
            .app
            .run("update orders set note = 'x' where id = 2")
            .await;
        scene
            .app
            .run("update orders set status = 'sent' where id = 2")
            .await;
        eventually_true("the row came and went", async || lines(&file).len() == 2).await;
        let seen: Vec<Value> = lines(&file);
        let ops: Vec<&str> = seen
            .iter()
            .map(|line| line["op"].as_str().unwrap())
            .collect();
        assert_eq!(ops, ["insert", "delete"]);
        assert_eq!(
            seen[0]["new"],
            serde_json::json!({"id": 2, "status": "paid"})
        );
        let sum = || -> (usize, i64) {
            let text = std::fs::read_to_string(&counts).unwrap_or_default();
            let all: Vec<i64> = text.lines().map(|l| l.trim().parse().unwrap()).collect();
            (all.len(), all.iter().sum())
        };
        eventually_true("everything came in batches", async || sum().1 == 6).await;
        assert!(sum().0 < 6, "{:?}", sum());
        // All of its position is stored, also behind what is left out.
        eventually_true("it is not behind", async || {
            scene.show("paid")["lag_changes"] == 0
        })
        .await;
        assert_eq!(scene.show("paid")["shards"][0]["sent"], 2);
        // What a person wrote wrong stops it, and another definition lets it go on.
        scene.subscribe(
            "paid",
            &format!("file:{file}"),
            &["--when", "statsu = 'paid'", "--replace"],
        );
        // The definition of before may still be at work, and leaves these out.
        let next = std::cell::Cell::new(100);
        eventually_true("it stops", async || {
            scene.write(next.get(), next.get(), "new").await;
            next.set(next.get() + 1);
            !scene.show("paid")["shards"][0]["stopped"].is_null()
        })
        .await;
        let why = scene.show("paid")["shards"][0]["stopped"].to_string();
        assert!(why.contains("no column 'statsu'"), "{why}");
        scene.subscribe(
            "paid",
            &format!("file:{file}"),
            &["--when", "status = 'paid'", "--replace"],
        );
        scene.ok(&["subscription", "resume", "paid"]);
        scene.write(10, 10, "paid").await;
        eventually_true("it goes on", async || lines(&file).len() == 3).await;
    });
}

#[test]
fn what_a_sink_refuses_stops_its_shard_is_parked_or_goes_elsewhere() {
    on_each(async |scene| {
        let receiver = Receiver::start().await.unwrap();
        receiver.rule(|request| {
            let bad = String::from_utf8_lossy(&request.body).contains("\"bad\"");
            Some(if bad {
                Reply::Status(422)
            } else {
                Reply::Accept
            })
        });
        let url = receiver.url("/");
        let dead = scene.path("dead");
        scene.subscribe("stops", &url, &[]);
        scene.subscribe("parks", &url, &["--on-refusal", "park"]);
        scene.subscribe("moves", &url, &["--on-refusal", &format!("file:{dead}")]);
        scene.write(1, 2, "good").await;
        scene.write(3, 3, "bad").await;
        scene.write(4, 5, "good").await;
        let _serve = scene.serve();
        let state = |name: &str| scene.show(name)["shards"][0].clone();
        eventually_true("one stops", async || state("stops")["state"] == "stopped").await;
        assert!(state("stops")["stopped"].to_string().contains("422"));
        for name in ["parks", "moves"] {
            eventually_true("the others go on", async || state(name)["lag_changes"] == 0).await;
            assert_eq!(state(name)["sent"], 4, "{name}");
        }
        assert_eq!(state("parks")["parked"], 1);
        let letters = lines(&dead);
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0]["new"]["status"], "bad");
        let (_, said, _) = out(&scene.url, &["subscription", "show", "parks"]);
        assert!(said.contains("parked: shard 0"), "{said}");
        let (_, said, _) = out(&scene.url, &["doctor"]);
        assert!(said.contains("refused 1 changes"), "{said}");
    });
}

#[test]
fn a_paused_subscription_that_is_too_far_behind_gives_up_its_position() {
    on_each(async |scene| {
        for (name, most) in [("small", "3"), ("large", "30")] {
            let to = format!("file:{}", scene.path(name));
            scene.subscribe(
                name,
                &to,
                &["--max-backlog", most, "--from", "now", "--paused"],
            );
        }
        scene.write(1, 5, "new").await;
        let store = scene.backend.store().await;
        scene.backend.settle(&*store).await;
        let _serve = scene.serve();
        let stopped = |name: &str| scene.show(name)["shards"][0]["stopped"].clone();
        eventually_true("it is given up", async || !stopped("small").is_null()).await;
        assert!(stopped("small").to_string().contains("max_backlog"));
        assert!(stopped("large").is_null());
        assert_eq!(scene.show("large")["shards"][0]["lag_changes"], 5);
        scene.ok(&["subscription", "replay", "small", "--yes"]);
        scene.ok(&["subscription", "resume", "small"]);
        scene.ok(&["subscription", "resume", "large"]);
        for name in ["small", "large"] {
            let file = scene.path(name);
            eventually_true("everything is kept", async || lines(&file).len() == 5).await;
        }
        assert_eq!(lines(&scene.path("small"))[0]["epoch"], 1);
    });
}

#[test]
fn a_sink_that_is_away_is_told_of_and_holds_up_nobody() {
    on_each(async |scene| {
        scene.write(1, 2, "new").await;
        scene.subscribe("away", "redis://127.0.0.1:1/orders", &[]);
        let file = scene.path("beside");
        scene.subscribe("beside", &format!("file:{file}"), &[]);
        let _serve = scene.serve();
        eventually_true("the other goes on", async || lines(&file).len() == 2).await;
        eventually_true("it is said", async || {
            scene.show("away")["state"] == "failing"
        })
        .await;
        let failing = scene.show("away")["shards"][0]["failing"].clone();
        assert!(
            failing["error"].to_string().contains("cannot be reached"),
            "{failing}"
        );
        let (_, said, _) = out(&scene.url, &["doctor"]);
        assert!(
            said.contains("the sink of shard 0 has taken nothing for"),
            "{said}"
        );
        assert_eq!(scene.show("beside")["state"], "running");
        scene.ok(&["subscription", "pause", "away"]);
        assert_eq!(scene.show("away")["state"], "paused");
        assert!(scene.show("away")["shards"][0]["failing"].is_null());
    });
}

/// A real Redis that speaks nothing but TLS.
#[test]
fn a_redis_behind_tls_is_pushed_to_if_its_certificate_is_trusted() {
    on_each(async |scene| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (scene.path("cert.pem"), scene.path("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let mut command = std::process::Command::new("redis-server");
        command
            .args([
                "--port",
                "0",
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                &scene.path(""),
            ])
            .args([
                "--tls-port",
                &port,
                "--tls-cert-file",
                &cert,
                "--tls-key-file",
                &key,
            ])
            .args(["--tls-ca-cert-file", &cert, "--tls-auth-clients", "no"])
            .args(["--requirepass", "hush"])
            .stdout(Stdio::null());
        let _redis = Running::start(&mut command);
        let to = format!("rediss://:hush@localhost:{port}/orders");
        scene.subscribe("safe", &to, &[]);
        scene.write(1, 5, "new").await;
        {
            let _serve = scene.serve();
            let failing = async || scene.show("safe")["shards"][0]["failing"]["error"].clone();
            eventually_true("it is not trusted", async || !failing().await.is_null()).await;
            let why = failing().await.to_string();
            assert!(why.contains("TLS fails") && !why.contains("hush"), "{why}");
        }
        let _serve = scene.serve_with(&[("SSL_CERT_FILE", &cert)]);
        let sent = async || scene.show("safe")["shards"][0]["sent"] == 5;
        eventually_true("everything is sent", sent).await;
        eventually_true("it works", async || {
            scene.show("safe")["state"] == "running"
        })
        .await;
    });
}
