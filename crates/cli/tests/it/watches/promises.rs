//! Promises 9 to 12, by number, for processes that are killed and frozen, and for a server that is.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use changefeed_testkit::backend::{Backend, PostgresBackend, eventually_true};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::process::Running;
use changefeed_testkit::run;
use changefeed_testkit::watching::{Scene, orders};
use serde_json::json;

use crate::watches::{Journal, changefeed, instance, on_every_database, processed};

/// `kill -9` right after a lease, before and after a call, and after a batch was settled.
#[test]
fn promise_11_a_crash_at_any_named_place_loses_nothing() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        for (id, place) in [
            "watch.leased",
            "watch.before",
            "watch.after",
            "watch.settled",
        ]
        .into_iter()
        .enumerate()
        {
            scene
                .app
                .run(&format!("insert into orders values ({id}, '{place}')"))
                .await;
            let mut doomed = instance(&url, &journal.command(), Some(place));
            let status = doomed.wait(Duration::from_secs(20));
            assert!(!status.success(), "{place} was never passed");
        }
        let _healthy = instance(&url, &journal.command(), None);
        processed(&scene).await;
        assert_eq!(journal.copy(), orders(&*scene.app).await);
        let status = scene.store.watch_status(&scene.watch, 1).await.unwrap();
        assert_eq!(status.parked, 0);
    });
}

/// Rows that a function says have failed are tried again without the others, also by another process.
#[test]
fn promise_11_a_crash_between_the_parts_of_a_batch_loses_nothing() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let values: Vec<String> = (1..=10).map(|id| format!("({id}, 'a')")).collect();
        let insert = format!("insert into orders values {}", values.join(", "));
        scene.app.run(&insert).await;
        // Fails with row 4 wherever it is, as long as it is not alone.
        let partly = format!(
            "{}; tail -n 1 {} | grep -q '}},{{' && echo '{{\"failed\": [{{\"index\": 3, \"error\": \"no room\"}}]}}'; true",
            journal.command(),
            journal.path().display()
        );
        let mut doomed = instance(&url, &partly, Some("watch.part"));
        assert!(!doomed.wait(Duration::from_secs(20)).success());
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        assert_eq!(status.unprocessed, 1, "the others are done");
        let _healthy = instance(&url, &partly, None);
        processed(&scene).await;
        let batches = journal.batches();
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, [10, 1]);
        assert_eq!(batches[1][0]["Item"], json!({"id": 4, "note": "a"}));
    });
}

/// A function that begins with all rows, killed while they are loaded, begins with all of them.
#[test]
fn promise_11_a_load_that_was_cut_off_goes_on() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        scene
            .app
            .run(
                "create table many (a integer, b varchar(9), primary key (a, b)); \
                 with recursive n(i) as (select 1 union all select i + 1 from n where i < 11000) \
                 insert into many select i % 100, 'k' || i from n",
            )
            .await;
        let command = journal.command();
        let mut args = vec!["watch", "many", "--name", "m", "--exec", &command];
        args.extend(["--from", "beginning", "--batch", "10000"]);
        let mut doomed = changefeed(&url, &args);
        doomed.env("CHANGEFEED_CRASH_AT", "watch.loaded");
        doomed.stdout(Stdio::null()).stderr(Stdio::null());
        assert!(
            !Running::start(&mut doomed)
                .wait(Duration::from_secs(60))
                .success()
        );
        let watches = scene.store.watches().await.unwrap();
        let many = watches.iter().find(|w| w.name.as_str() == "m").unwrap();
        let left = format!("select count(*) from {}", many.leases_table);
        assert_eq!(scene.app.number(&left).await, 10_000, "a chunk of them");
        let mut survivor = changefeed(&url, &args);
        let _survivor = Running::start(survivor.stdout(Stdio::null()).stderr(Stdio::null()));
        // Not before: a large batch is more than one write to the journal.
        eventually_true("everything is processed", async || {
            scene.app.number(&left).await == 0
        })
        .await;
        let keys: std::collections::BTreeSet<String> = journal
            .batches()
            .concat()
            .iter()
            .map(|change| change["Item"].to_string())
            .collect();
        assert_eq!(keys.len(), 11_000);
    });
}

/// Frozen with its rows for longer than their lease; another processes them; then it wakes up and
/// its function succeeds, too late.
#[test]
fn promise_9_a_frozen_instance_loses_its_rows_and_cannot_speak_for_them() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let started = journal.dir.path().join("started");
        let end = journal.dir.path().join("end");
        let slow = format!(
            "cat > /dev/null; touch {}; while ! test -e {}; do sleep 0.01; done",
            started.display(),
            end.display()
        );
        let frozen = instance(&url, &slow, None);
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is called", async || started.exists()).await;
        let held = generation(&scene).await;
        frozen.freeze();
        let other = instance(&url, &format!("{}; sleep 0.5", journal.command()), None);
        eventually_true("the other has it", async || {
            journal.batches().len() == 1 && generation(&scene).await > held
        })
        .await;
        // While the other one is still at it.
        std::fs::write(&end, "").unwrap();
        frozen.thaw();
        processed(&scene).await;
        assert_eq!(journal.batches().len(), 1, "nobody was handed it once more");
        scene.app.run("update orders set note = 'b'").await;
        drop(frozen);
        processed(&scene).await;
        assert_eq!(journal.copy(), orders(&*scene.app).await);
        drop(other);
    });
}

/// The generation of the newest lease; 0 where there is none.
async fn generation(scene: &Scene) -> i64 {
    let leases = &scene.watch.leases_table;
    let sql = format!("select coalesce(max(_changefeed_lease_generation), 0) from {leases}");
    scene.app.number(&sql).await
}

/// Ten processes, some of them killed, and a table that never rests.
#[test]
fn promises_9_to_12_hold_for_processes_that_are_killed_and_frozen() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let mut instances: Vec<Running> = (0..10)
            .map(|_| instance(&url, &journal.command(), None))
            .collect();
        for round in 0..30 {
            let id = fastrand::i64(0..20);
            let sql = match fastrand::u8(..4) {
                0 => format!("delete from orders where id = {id}"),
                _ => format!(
                    "insert into orders values ({id}, '{round}') \
                     on conflict (id) do update set note = excluded.note"
                ),
            };
            scene.app.run(&sql).await;
            let victim = fastrand::usize(..instances.len());
            match round % 3 {
                0 => {
                    instances[victim].kill();
                    instances[victim] = instance(&url, &journal.command(), None);
                }
                // A process that is stopped while it writes holds an SQLite file, also against
                // the application; nothing of ours can help that.
                1 if !scene.backend.words().one_writer => instances[victim].freeze(),
                _ => instances.iter().for_each(Running::thaw),
            }
        }
        instances.iter().for_each(Running::thaw);
        processed(&scene).await;
        // An instance that was killed may have left a command behind that still writes.
        eventually_true("the journal tells the table", async || {
            journal.copy() == orders(&*scene.app).await
        })
        .await;
    });
}

/// Whatever becomes of the row while its command runs, and of the process.
#[test]
fn promise_10_a_newer_change_is_handed_over_after_the_one_in_process() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let (started, end) = (
            journal.dir.path().join("started"),
            journal.dir.path().join("end"),
        );
        let slow = format!(
            // What outlives its instance ends with this test.
            "touch {0}; while test -e {0} && ! test -e {1}; do sleep 0.01; done; {2}",
            started.display(),
            end.display(),
            journal.command()
        );
        let mut first = instance(&url, &slow, None);
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is called", async || started.exists()).await;
        scene.app.run("update orders set note = 'b'").await;
        let second = instance(&url, &journal.command(), None);
        // The other one knows of the newer change and leaves it alone.
        let newer = format!(
            "select count(*) from {} where _changefeed_newer_operation = 1",
            scene.watch.leases_table
        );
        eventually_true("the newer one waits", async || {
            scene.app.number(&newer).await == 1
        })
        .await;
        assert!(journal.batches().is_empty());
        std::fs::write(&end, "").unwrap();
        processed(&scene).await;
        let told = |note: &str, operation: i64| json!({"Operation": operation, "Item": {"id": 1, "note": note}});
        assert_eq!(journal.batches(), [[told("a", 0)], [told("b", 1)]]);
        // Killed with a newer change behind it: both are in what comes next.
        std::fs::remove_file(&end).unwrap();
        std::fs::remove_file(&started).unwrap();
        drop(second);
        scene.app.run("update orders set note = 'c'").await;
        eventually_true("it is called", async || started.exists()).await;
        scene.app.run("update orders set note = 'd'").await;
        first.kill();
        let _third = instance(&url, &journal.command(), None);
        processed(&scene).await;
        assert_eq!(journal.copy(), orders(&*scene.app).await);
    });
}

/// The server dies and comes back, as often as it likes: nothing is lost, and nobody of ours ends.
#[test]
fn promise_11_a_server_that_dies_loses_nothing() {
    run(async {
        let cluster = Cluster::start_new();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&cluster.url()).await);
        let mut scene = Scene::new(backend).await;
        let journal = Journal::new();
        let url = scene.backend.url();
        let mut fleet: Vec<Running> = (0..3)
            .map(|_| instance(&url, &journal.command(), None))
            .collect();
        // One that does not find the server when it starts says so and ends.
        let started = "select count(distinct client_port) from pg_stat_activity \
             where datname = current_database() and query like '%_changefeed_lease_generation%' \
             and pid <> pg_backend_pid()";
        eventually_true("all are at work", async || {
            scene.app.number(started).await >= 3
        })
        .await;
        for crash in 0..4 {
            for id in 0..40 {
                let sql = format!(
                    "insert into orders values ({id}, '{crash}') \
                     on conflict (id) do update set note = excluded.note"
                );
                scene.app.run(&sql).await;
            }
            scene
                .app
                .run(&format!("delete from orders where id = {crash}"))
                .await;
            if crash % 2 == 0 {
                cluster.stop_immediate();
            } else {
                cluster.kill_server();
            }
            cluster.start();
            let alive = fleet.iter_mut().all(|one| one.ended().is_none());
            assert!(alive, "an instance does not end because the server did");
            scene.app = scene.backend.session().await;
        }
        eventually_true("everything is processed", async || {
            let status = scene.store.watch_status(&scene.watch, 0).await;
            status.is_ok_and(|status| status.unprocessed == 0)
        })
        .await;
        eventually_true("the journal tells the table", async || {
            journal.copy() == orders(&*scene.app).await
        })
        .await;
        let status = scene.store.watch_status(&scene.watch, 1).await.unwrap();
        assert_eq!(status.parked, 0);
    });
}

/// Where nobody dies, ten processes hand over each change once, and more than one of them works.
#[test]
fn promise_12_ten_processes_do_the_work_of_one() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        // Each says who it is: its command is a child of the process.
        let command = format!(
            "echo $PPID >> {}.who; {}",
            journal.path().display(),
            journal.command()
        );
        let _fleet: Vec<Running> = (0..10).map(|_| patient(&url, &command)).collect();
        for part in 0..20 {
            let values: Vec<String> = (0..20)
                .map(|n| format!("({}, 'a')", part * 20 + n))
                .collect();
            scene
                .app
                .run(&format!("insert into orders values {}", values.join(", ")))
                .await;
        }
        processed(&scene).await;
        let mut times: BTreeMap<i64, u32> = BTreeMap::new();
        for change in journal.batches().concat() {
            *times
                .entry(change["Item"]["id"].as_i64().unwrap())
                .or_default() += 1;
        }
        assert_eq!(times.len(), 400);
        assert!(times.values().all(|n| *n == 1), "{times:?}");
        let who = std::fs::read_to_string(format!("{}.who", journal.path().display())).unwrap();
        let who: std::collections::BTreeSet<&str> = who.lines().collect();
        assert!(who.len() > 1, "only one of ten has worked");
    });
}

/// An instance with a lease that lasts, however slow the machine is.
fn patient(url: &str, exec: &str) -> Running {
    let args = [
        "watch", "orders", "--name", "f", "--batch", "10", "--exec", exec,
    ];
    let mut command = changefeed(url, &args);
    Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
}
