//! All or nothing, whatever happens in the middle.

use std::time::Duration;

use changefeed_testkit::backend::eventually_true;
use changefeed_testkit::process::Running;

use crate::apply::{ONE_OF_EACH, finish, on_every_database};

#[test]
fn what_fails_leaves_nothing_behind() {
    on_every_database(async |stage| {
        stage.write(&ONE_OF_EACH.replace("new.status = 'paid'", "new.nosuch = 1"));
        let said = stage.run("apply");
        assert_ne!(said.code, 0, "{}", said.out);
        assert!(said.errors.contains("nosuch"), "{}", said.errors);
        assert_eq!(stage.defined(), [""; 0]);
        stage
            .app
            .run("insert into orders values (1, 7, 'new', 'x')")
            .await;
    });
}

#[test]
fn one_that_is_killed_in_the_middle_has_done_nothing_and_the_next_does_all() {
    on_every_database(async |stage| {
        stage.write(ONE_OF_EACH);
        for step in 1..=3 {
            let mut command = stage.command("apply");
            let killed = finish(command.env("CHANGEFEED_CRASH_AT", format!("apply.step:{step}")));
            assert_eq!(killed.code, -1, "{killed:?}");
            // The server notices soon that nobody is there any more.
            eventually_true("the table can be written", async || {
                let insert = format!("insert into orders values ({step}, 7, 'new', 'x')");
                stage.app.execute(&insert).await.is_ok()
            })
            .await;
            assert_eq!(stage.defined(), [""; 0], "step {step}");
        }
        let mut command = stage.command("apply");
        let killed = finish(command.env("CHANGEFEED_CRASH_AT", "apply.after_commit"));
        assert_eq!(killed.code, -1, "{killed:?}");
        assert_eq!(stage.defined().len(), 4);
        assert_eq!(stage.out("apply"), "nothing to do\n");
        // The same for dropping.
        stage.write("");
        let mut command = stage.command("apply --prune --yes");
        let killed = finish(command.env("CHANGEFEED_CRASH_AT", "apply.step:2"));
        assert_eq!(killed.code, -1, "{killed:?}");
        eventually_true("the table can be written", async || {
            let insert = "insert into orders values (9, 7, 'new', 'x')";
            stage.app.execute(insert).await.is_ok()
        })
        .await;
        assert_eq!(stage.defined().len(), 4);
        stage.out("apply --prune --yes");
        assert_eq!(stage.defined(), [""; 0]);
    });
}

#[test]
fn several_at_once_make_everything_once() {
    on_every_database(async |stage| {
        stage.write(ONE_OF_EACH);
        let start = || {
            let mut command = stage.command("apply");
            command.stdout(std::process::Stdio::null());
            command.stderr(std::process::Stdio::null());
            Running::start(&mut command)
        };
        let mut all: Vec<Running> = (0..4).map(|_| start()).collect();
        let codes: Vec<Option<i32>> = all
            .iter_mut()
            .map(|one| one.wait(Duration::from_secs(60)).code())
            .collect();
        // One wins; who comes later finds nothing to do, or that somebody was faster.
        assert!(codes.contains(&Some(0)), "{codes:?}");
        assert!(
            codes.iter().all(|code| matches!(code, Some(0 | 1))),
            "{codes:?}"
        );
        assert_eq!(stage.defined().len(), 4);
        assert_eq!(stage.out("apply"), "nothing to do\n");
    });
}

#[test]
fn a_watch_that_begins_with_existing_rows_has_them() {
    on_every_database(async |stage| {
        stage
            .app
            .run("insert into orders values (1, 7, 'a', 'x'), (2, 8, 'b', 'y')")
            .await;
        stage.write("[watches.all]\ntable = \"orders\"\nexec = \"cat\"\nfrom = \"beginning\"\n");
        stage.out("apply");
        assert_eq!(stage.json("watch list")[0]["unprocessed"], 2);
        assert_eq!(stage.out("apply"), "nothing to do\n");
    });
}

/// Applying again does not help, so nobody is told to.
#[test]
fn what_never_fits_is_not_somebody_elses_doing() {
    on_every_database(async |stage| {
        stage.write("[triggers.t]\ntable = \"orders\"\nupdate = [\"nosuch\"]\nin_process = true\n");
        let said = stage.run("apply");
        assert_eq!(said.code, 1, "{said:?}");
        assert!(
            said.errors.contains("'nosuch'; nothing was changed\n"),
            "{said:?}"
        );
        assert!(!said.errors.contains("apply again"), "{said:?}");
    });
}
