//! Where the file is found, and what goes before it.

use changefeed_testkit::backend::eventually_true;
use changefeed_testkit::process::Running;

use crate::apply::{finish, on_every_database};

#[test]
fn every_command_takes_the_database_from_the_file() {
    on_every_database(async |stage| {
        stage.write("[feeds.a]\nid = 5\n");
        stage.out("apply");
        assert_eq!(stage.json("feed list")[0]["id"], 5);
        stage.out("status");
        stage.out("doctor");

        // From another file, named in either way.
        let dir = stage.dir.path();
        std::fs::rename(dir.join("changefeed.toml"), dir.join("other.toml")).unwrap();
        let lost = stage.run("feed list");
        assert!(
            lost.errors
                .contains("there is no database file 'changefeed.db'"),
            "{lost:?}"
        );
        assert_eq!(stage.json("feed list --config other.toml")[0]["id"], 5);
        let mut command = stage.command("feed list --json");
        let said = finish(command.env("CHANGEFEED_CONFIG", "other.toml"));
        assert!(said.out.contains("\"id\":5"), "{said:?}");
        assert_eq!(stage.out("apply other.toml"), "nothing to do\n");

        // The environment goes before the file, and what is typed before both.
        let mut command = stage.command("feed list --config other.toml");
        let said = finish(command.env("CHANGEFEED_DB", "sqlite:nosuch.db"));
        assert!(said.errors.contains("'nosuch.db'"), "{said:?}");
        let mut command = stage.command("feed list --config other.toml --db sqlite:typed.db");
        let said = finish(command.env("CHANGEFEED_DB", "sqlite:nosuch.db"));
        assert!(said.errors.contains("'typed.db'"), "{said:?}");

        // From the environment or a file, by name.
        let url = stage.backend.url();
        std::fs::write(dir.join("url"), format!("{url}\n")).unwrap();
        std::fs::write(
            dir.join("changefeed.toml"),
            "[database]\nurl = { file = \"url\" }",
        )
        .unwrap();
        assert_eq!(stage.json("feed list")[0]["id"], 5);
        std::fs::write(
            dir.join("changefeed.toml"),
            "[database]\nurl = { env = \"SHOP_DB\" }",
        )
        .unwrap();
        let said = finish(stage.command("feed list").env("SHOP_DB", &url));
        assert_eq!(said.code, 0, "{said:?}");
        let said = stage.run("feed list");
        assert_eq!(
            (said.code, &*said.errors),
            (
                1,
                "error: the environment variable SHOP_DB, which holds the database, is not set\n"
            )
        );
    });
}

#[test]
fn what_is_wrong_with_a_file_is_told_and_nothing_is_done() {
    on_every_database(async |stage| {
        stage.write("[feeds.a]\nshard = 5\n");
        let said = stage.run("apply");
        assert_eq!(
            (said.code, &*said.errors),
            (
                2,
                "error: changefeed.toml:5:1: there is no key 'shard' in [feeds.a]: did you mean \
                 'shards'?\n"
            )
        );
        // Also for commands that want nothing but the database of it.
        assert_eq!(stage.run("status").code, 2);
        // But not for those that want nothing of it.
        assert_eq!(stage.run("init --print").code, 0);
        let said = stage.run("apply --config nosuch.toml");
        assert_eq!(said.code, 2);
        assert!(
            said.errors
                .starts_with("error: 'nosuch.toml' cannot be read\n"),
            "{said:?}"
        );
        std::fs::remove_file(stage.dir.path().join("changefeed.toml")).unwrap();
        let mut command = stage.command("apply");
        let said = finish(command.env("CHANGEFEED_DB", stage.backend.url()));
        assert_eq!(
            (said.code, &*said.errors),
            (
                2,
                "error: there is no changefeed.toml here\n  \
                 hint: name a file, or begin with the one that `changefeed init` writes\n"
            )
        );
    });
}

#[test]
fn the_first_file_is_written_once_and_changes_nothing() {
    on_every_database(async |stage| {
        let dir = stage.dir.path();
        let said = stage.run("init");
        assert_eq!(
            (said.code, &*said.errors),
            (
                1,
                "error: there is already a 'changefeed.toml'\n  \
                 hint: `changefeed init --print` shows every key with its default\n"
            )
        );
        std::fs::remove_file(dir.join("changefeed.toml")).unwrap();
        stage.out("init");
        let written = std::fs::read_to_string(dir.join("changefeed.toml")).unwrap();
        assert_eq!(written, stage.out("init --print"));
        let mut command = stage.command("apply");
        let said = finish(command.env("CHANGEFEED_DB", stage.backend.url()));
        assert_eq!(
            (said.code, said.out.lines().last()),
            (0, Some("nothing to do"))
        );
    });
}

#[test]
fn a_database_that_goes_before_the_one_of_the_file_is_said_to() {
    on_every_database(async |stage| {
        let dir = stage.dir.path();
        std::fs::write(
            dir.join("changefeed.toml"),
            "[database]\nurl = \"postgres://me:SEKRET@db.example/other\"\n[feeds.a]\n",
        )
        .unwrap();
        let mut command = stage.command("apply --check");
        let said = finish(command.env("CHANGEFEED_DB", stage.backend.url()));
        assert_eq!((said.code, &*said.errors), (3, ""), "{said:?}");
        let begin = "changefeed.toml names postgres://db.example:5432/other, and --db or \
                     CHANGEFEED_DB goes before it\n+ feed a\n";
        assert!(stage.plan(&said.out).starts_with(begin), "{}", said.out);
    });
}

#[test]
fn who_runs_with_settings_of_a_file_says_so_once() {
    on_every_database(async |stage| {
        let said = finish(stage.command("feed list").env("RUST_LOG", "info"));
        assert!(!said.errors.contains("settings from"), "{said:?}");
        for args in ["serve --only sweep", "deliver"] {
            let path = stage.dir.path().join("log");
            let mut command = stage.command(args);
            command.env("RUST_LOG", "info");
            command.stderr(std::fs::File::create(&path).unwrap());
            let running = Running::start(&mut command);
            let told = || {
                let log = std::fs::read_to_string(&path).unwrap();
                log.matches("settings from changefeed.toml").count()
            };
            eventually_true("it says so", async || told() > 0).await;
            drop(running);
            assert_eq!(told(), 1, "{args}");
        }
    });
}
