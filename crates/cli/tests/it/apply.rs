//! `changefeed.toml` and `apply`, on every database: what is planned, what is done, and what is left
//! when it is cut off.

mod chance;
mod documentation;
mod files;
mod plans;
mod promises;
mod secrets;
mod subscriptions;

use std::process::{Command, Stdio};
use std::sync::Arc;

use changefeed_testkit::backend::{Backend, Session, on_every_backend};
use changefeed_testkit::run;
use serde_json::Value;

/// A fresh database with a table `orders`, and a directory with a `changefeed.toml` that names it.
pub(crate) struct Stage {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) app: Box<dyn Session>,
    pub(crate) dir: tempfile::TempDir,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Stage {
    pub(crate) async fn new(backend: Arc<dyn Backend>) -> Stage {
        backend.installed().await;
        let app = backend.session().await;
        app.run(
            "create table orders \
             (id integer primary key, customer_id integer, status text, note text)",
        )
        .await;
        let stage = Stage {
            backend,
            app,
            dir: tempfile::tempdir().unwrap(),
        };
        stage.write("");
        stage
    }

    /// Writes the file: its database, and these definitions.
    pub(crate) fn write(&self, definitions: &str) {
        let text = format!(
            "[database]\nurl = \"{}\"\n\n{definitions}",
            self.backend.url()
        );
        std::fs::write(self.dir.path().join("changefeed.toml"), text).unwrap();
    }

    /// The program, where the file is, with nothing in its environment.
    pub(crate) fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
        command
            .args(args.split(' '))
            .current_dir(self.dir.path())
            .env_remove("CHANGEFEED_DB")
            .env_remove("CHANGEFEED_CONFIG")
            .env_remove("CHANGEFEED_CRASH_AT")
            .env("RUST_LOG", "error")
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &str) -> Said {
        finish(&mut self.command(args))
    }

    /// The standard output of a command that must succeed.
    pub(crate) fn out(&self, args: &str) -> String {
        let said = self.run(args);
        assert_eq!((said.code, &*said.errors), (0, ""), "{args}: {}", said.out);
        match args.starts_with("apply") && !args.ends_with("--json") {
            true => self.plan(&said.out).to_owned(),
            false => said.out,
        }
    }

    /// What follows after the line that every plan begins with.
    pub(crate) fn plan<'a>(&self, out: &'a str) -> &'a str {
        let (first, plan) = out.split_once('\n').unwrap();
        let url = self.backend.url();
        let (scheme, name) = (
            url.split_once(':').unwrap().0,
            url.rsplit('/').next().unwrap().split('?').next().unwrap(),
        );
        assert!(first.starts_with(&format!("database {scheme}:")), "{first}");
        assert!(first.ends_with(name), "{first}");
        assert!(!first.contains('@'), "{first}");
        plan
    }

    pub(crate) fn json(&self, args: &str) -> Vec<Value> {
        let said = self.out(&format!("{args} --json"));
        let lines = said.lines();
        lines.map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// Everything that is defined, in a few words.
    pub(crate) fn defined(&self) -> Vec<String> {
        let names = |args: &str, kind: &str, name: fn(&Value) -> &Value| -> Vec<String> {
            let all = self.json(args);
            let words = all.iter().map(|v| name(v).as_str().unwrap().to_owned());
            words.map(|name| format!("{kind} {name}")).collect()
        };
        let mut all = names("feed list", "feed", |v| &v["name"]);
        all.extend(names("trigger list", "trigger", |v| &v["name"]));
        all.extend(names("watch list", "watch", |v| &v["name"]));
        all.sort();
        all
    }
}

pub(crate) fn finish(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    Said {
        // A process that was killed has none.
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(crate) fn on_every_database(case: impl AsyncFn(Stage)) {
    run(async {
        on_every_backend(async |backend| case(Stage::new(backend).await).await).await;
    });
}

/// One of each kind.
pub(crate) const ONE_OF_EACH: &str = r#"
[feeds.orders]
id = 37
from = "orders"
shards = 2
shard_by = "customer_id"

[triggers.paid]
table = "orders"
update = ["status"]
when = "new.status = 'paid'"
webhook = "https://shop.example/hooks/paid"
header = { X-Team = "shop", Authorization = { env = "SHOP_TOKEN" } }
secret = { env = "SHOP_SECRET" }
retries = 4
backoff = "5m"
final_status = [400, 410]
feed = "paid"

[watches.mail]
table = "orders"
exec = "cat"
lease = "8s"
"#;
