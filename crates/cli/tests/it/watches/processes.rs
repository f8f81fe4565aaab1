//! Processes and the commands that they start.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use changefeed_testkit::backend::{Backend, PostgresBackend, eventually_true};
use changefeed_testkit::process::{Running, is_alive, terminate};
use changefeed_testkit::run;
use changefeed_testkit::watching::Scene;

use crate::watches::{Journal, changefeed, instance, on_every_database, processed};

/// A row that kills the process of its function does so only as often as it has attempts, and
/// takes no other row with it.
#[test]
fn a_row_that_kills_its_process_is_parked_alone() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let values: Vec<String> = (1..=10).map(|id| format!("({id}, 'a')")).collect();
        scene
            .app
            .run(&format!("insert into orders values {}", values.join(", ")))
            .await;
        // The command kills the instance that has started it: the parent of its shell.
        let deadly = format!(
            "f={}/batch.$$; cat > $f; grep -q '\"id\":7,' $f && kill -9 $PPID; cat $f >> {}",
            journal.dir.path().display(),
            journal.path().display()
        );
        eventually_true("only the deadly row is left", async || {
            let mut one = instance(&url, &deadly, None);
            eventually_true("it dies or has nothing to do", async || {
                one.ended().is_some() || {
                    let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
                    status.unprocessed == 0
                }
            })
            .await;
            let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
            status.unprocessed == 0
        })
        .await;
        let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
        assert_eq!(status.parked, 1);
        let parked = &status.parked_changes[0];
        assert_eq!(parked.key.get(), "{\"id\":7}");
        let error = parked.error.as_deref().unwrap();
        assert!(
            error.ends_with("did not report back: outcome unknown"),
            "{error}"
        );
    });
}

/// Told to stop, an instance lets its function finish, and leaves nothing behind.
#[test]
fn a_stopped_instance_finishes_its_call() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let started = journal.dir.path().join("started");
        let slow = format!(
            "touch {}; sleep 0.5; {}",
            started.display(),
            journal.command()
        );
        let mut stopped = instance(&url, &slow, None);
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is called", async || started.exists()).await;
        terminate(stopped.pid());
        assert!(stopped.wait(Duration::from_secs(10)).success());
        assert_eq!(journal.batches().len(), 1);
        processed(&scene).await;
    });
}

/// A watch without a name leaves nothing behind: when it is told to stop, and when it was killed, after a while.
#[test]
fn a_watch_without_a_name_leaves_nothing_behind() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        scene
            .app
            .run("create table notes (id integer primary key, body text)")
            .await;
        let names = async || -> Vec<String> {
            let watches = scene.store.watches().await.unwrap();
            watches.iter().map(|w| w.name.to_string()).collect()
        };
        let start = |more: &[&str]| {
            let mut args = vec!["watch", "notes"];
            args.extend(more);
            Running::start(changefeed(&url, &args).stdout(Stdio::null()))
        };
        let mut polite = start(&[]);
        eventually_true("it is there", async || names().await.len() == 2).await;
        terminate(polite.pid());
        assert!(polite.wait(Duration::from_secs(20)).success());
        assert_eq!(names().await, ["f"]);
        let killed = start(&[]);
        eventually_true("it is there", async || names().await.len() == 2).await;
        drop(killed);
        // A minute later.
        let (state, left) = match scene
            .app
            .query("select 1 from changefeed_global_state")
            .await
        {
            Ok(_) => ("changefeed_global_state", "last_access_time - 70000"),
            Err(_) => (
                "changefeed.global_state",
                "last_access_time - interval '70 seconds'",
            ),
        };
        scene
            .app
            .run(&format!("update {state} set last_access_time = {left}"))
            .await;
        let mut kept = start(&["--keep", "--exec", "true"]);
        eventually_true("the other is gone", async || {
            let names = names().await;
            names.len() == 2 && names.iter().any(|name| name.starts_with("notes-"))
        })
        .await;
        terminate(kept.pid());
        assert!(kept.wait(Duration::from_secs(20)).success());
        assert_eq!(names().await.len(), 2);
    });
}

/// A command that cannot keep its lease is ended, with everything it has started.
#[test]
fn a_command_that_lost_its_lease_is_ended_with_its_children() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let scene = Scene::new(backend).await;
        let journal = Journal::new();
        let child = journal.dir.path().join("child");
        let slow = format!("sleep 600 & echo $! > {}; wait", child.display());
        let _instance = instance(&scene.backend.url(), &slow, None);
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is called", async || pid(&child).is_some()).await;
        let sleeping = pid(&child).unwrap();
        // Renewals are refused: the rows belong to nobody any more.
        scene
            .app
            .run(&format!(
                "update {} set _changefeed_lease_generation = -1",
                scene.watch.leases_table
            ))
            .await;
        eventually_true("its child is gone", async || !is_alive(sleeping)).await;
    });
}

fn pid(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Stopped in the middle of a large batch, it must not keep whoever alters the table waiting, and
/// everybody behind them.
#[test]
fn an_instance_that_is_frozen_while_it_reads_does_not_lock_the_table() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let scene = Scene::new(backend).await;
        let app = &scene.app;
        let url = scene.backend.url();
        let reading = "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event = 'ClientWrite'";
        // More than the buffers between server and instance hold.
        app.run("insert into orders values (1, repeat('0123456789', 3000000))")
            .await;
        let args = [
            "watch",
            "orders",
            "--name",
            "f",
            "--lease",
            "4s",
            "--exec",
            "cat > /dev/null",
        ];
        let mut frozen = None;
        eventually_true("it is frozen while it reads", async || {
            let one = Running::start(changefeed(&url, &args).stderr(Stdio::null()));
            let mut caught = false;
            while !caught && app.number("select count(*) from orders").await == 1 {
                caught = app.number(reading).await > 0;
                let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
                if status.unprocessed == 0 {
                    break;
                }
            }
            one.freeze();
            caught = app.number(reading).await > 0;
            if !caught {
                app.run("update orders set note = note").await;
                return false;
            }
            frozen = Some(one);
            true
        })
        .await;
        app.run("set lock_timeout = '20s'; alter table orders add more integer")
            .await;
        drop(frozen);
    });
}
