//! Plans: created, changed, dropped, refused, and nothing to do.

use serde_json::json;

use crate::apply::{ONE_OF_EACH, on_every_database};

#[test]
fn what_is_missing_is_created_once() {
    on_every_database(async |stage| {
        stage.write(ONE_OF_EACH);
        let checked = stage.run("apply --check");
        assert_eq!((checked.code, &*checked.errors), (3, ""));
        assert_eq!(stage.defined(), [""; 0], "checking changes nothing");

        let plan = stage.out("apply");
        assert!(plan.starts_with(stage.plan(&checked.out)), "{plan}");
        assert!(
            plan.contains("+ feed orders\n    id = 37\n    shards = 2\n"),
            "{plan}"
        );
        assert!(plan.contains("    final_status = [400, 410]\n"), "{plan}");
        assert!(plan.contains("+ watch mail\n"), "{plan}");
        assert!(
            plan.ends_with("3 to create, 0 to change, 0 to drop\napplied\n"),
            "{plan}"
        );
        // The trigger has made its feed.
        let all = ["feed orders", "feed paid", "trigger paid", "watch mail"];
        assert_eq!(stage.defined(), all);
        assert_eq!(stage.out("apply"), "nothing to do\n");
        assert_eq!(stage.out("apply --check --prune"), "nothing to do\n");
        assert_eq!(stage.json("apply"), [json!(null); 0]);

        let trigger = &stage.json("trigger show paid")[0];
        assert_eq!(trigger["retries"], 4);
        assert_eq!(trigger["secret"], json!({"env": "SHOP_SECRET"}));
        assert_eq!(trigger["update"], json!(["status"]));

        // It is there to be used.
        let app = &stage.app;
        app.run("insert into orders values (1, 7, 'new', 'x')")
            .await;
        app.run("update orders set status = 'paid'").await;
        let events = stage.json("event list");
        assert_eq!(events.len(), 1, "{events:?}");
    });
}

#[test]
fn what_is_different_is_changed_and_keeps_what_it_has() {
    on_every_database(async |stage| {
        stage.write(ONE_OF_EACH);
        stage.out("apply");
        let app = &stage.app;
        app.run("insert into orders values (1, 7, 'new', 'x')")
            .await;
        app.run("update orders set status = 'paid'").await;

        let changed = ONE_OF_EACH
            .replace(
                "id = 37",
                "id = 37\ncomment = \"all of them\"\nsweep_group = 3",
            )
            .replace("retries = 4", "retries = 6\npaused = true")
            .replace("backoff = \"5m\"\n", "")
            .replace("lease = \"8s\"", "lease = \"9s\"");
        stage.write(&changed);
        let mut differences = stage.json("apply");
        for difference in &mut differences {
            let database = difference["database"].take();
            assert!(!database.as_str().unwrap().contains('@'), "{database}");
            difference.as_object_mut().unwrap().remove("database");
        }
        assert_eq!(
            differences,
            [
                json!({"action": "change", "kind": "feed", "name": "orders", "changes": [
                    {"key": "sweep_group", "from": null, "to": 3},
                    {"key": "comment", "from": null, "to": "all of them"}]}),
                json!({"action": "change", "kind": "trigger", "name": "paid", "changes": [
                    {"key": "retries", "from": 4, "to": 6},
                    {"key": "backoff", "from": "5m", "to": null},
                    {"key": "paused", "from": false, "to": true}]}),
                json!({"action": "change", "kind": "watch", "name": "mail", "changes": [
                    {"key": "lease", "from": "8s", "to": "9s"}]}),
            ]
        );
        assert_eq!(stage.out("apply"), "nothing to do\n");
        let feed = &stage.json("feed list")[0];
        assert_eq!(feed["comment"], "all of them");
        assert_eq!(feed["shards"][1]["sweep_group"], 3);
        assert!(stage.json("trigger show paid")[0]["paused"].is_string());
        assert_eq!(stage.json("event list").len(), 1, "its events are kept");
        let watch = &stage.json("watch list")[0];
        assert_eq!(watch["lease"], "9s");

        // What a person has paused stays so unless the file says something about it.
        stage.write(&changed.replace("paused = true", ""));
        assert_eq!(stage.out("apply"), "nothing to do\n");
        stage.write(&changed.replace("paused = true", "paused = false"));
        assert!(stage.out("apply").contains("paused: true → false"));
        assert!(stage.json("trigger show paid")[0]["paused"].is_null());

        // Both shards are swept by their new group, and nothing was lost on the way.
        stage.out("sweep --group 3 --once");
        let shard = 7 % 2;
        let page = stage.json(&format!("feed read orders --shard {shard}"));
        assert_eq!(page.len(), 2, "{page:?}");
    });
}

#[test]
fn what_is_not_in_the_file_is_dropped_only_when_asked_to() {
    on_every_database(async |stage| {
        stage.write(ONE_OF_EACH);
        stage.out("apply");
        stage.out("feed create byhand");
        let all = stage.defined();
        stage.write("");
        let left = stage.out("apply");
        assert!(
            left.starts_with("not in the file, and left alone without --prune: "),
            "{left}"
        );
        assert!(left.ends_with("\nnothing to do\n"), "{left}");
        assert_eq!(stage.run("apply --check").code, 0);
        assert_eq!(stage.run("apply --check --prune").code, 3);

        // Nobody is there to say yes.
        let refused = stage.run("apply --prune");
        assert_eq!(refused.code, 2);
        assert_eq!(
            refused.errors,
            "error: This drops 5 of them, with what is in them. There is no terminal to ask on\n  \
             hint: add --yes to go ahead without asking\n"
        );
        assert_eq!(stage.defined(), all);
        let dropped = stage.out("apply --prune --yes");
        assert!(
            dropped.contains(
                "- feed orders\n    its changes and the cursors of its consumers are lost\n"
            ),
            "{dropped}"
        );
        assert!(dropped.ends_with("0 to create, 0 to change, 5 to drop\napplied\n"));
        assert_eq!(stage.defined(), [""; 0]);
        // Nothing of ours is left on the table.
        stage
            .app
            .run("insert into orders values (1, 7, 'new', 'x')")
            .await;
        assert_eq!(stage.out("apply --prune"), "nothing to do\n");
    });
}

#[test]
fn a_trigger_lets_go_of_a_feed_that_is_dropped() {
    on_every_database(async |stage| {
        let trigger = "[triggers.t]\ntable = \"orders\"\nin_process = true\n";
        stage.write(&format!("{trigger}feed = \"old\""));
        stage.out("apply");
        stage.write(&format!("{trigger}feed = \"new\"\n[feeds.new]\nid = 9"));
        stage.out("apply --prune --yes");
        assert_eq!(stage.defined(), ["feed new", "trigger t"]);
        assert_eq!(stage.out("apply --prune"), "nothing to do\n");
        // A function that runs elsewhere has no definition, and is nobody's to prune.
        let spec = changefeed_testkit::watching::spec("elsewhere", "orders");
        let store = stage.backend.store().await;
        store.open_watch(&spec).await.unwrap();
        assert_eq!(stage.out("apply --prune"), "nothing to do\n");
    });
}

#[test]
fn what_cannot_be_changed_is_refused_with_the_next_step_and_nothing_is_done() {
    on_every_database(async |stage| {
        stage.write(ONE_OF_EACH);
        stage.out("apply");
        stage
            .app
            .run("create table other (id integer primary key, status text)")
            .await;
        stage.write(
            &ONE_OF_EACH
                .replace("shards = 2", "shards = 3")
                .replace("retries = 4", "retries = 6")
                .replace("table = \"orders\"\nexec", "table = \"other\"\nexec"),
        );
        for args in ["apply", "apply --check"] {
            let said = stage.run(args);
            assert_eq!(said.code, 2);
            assert_eq!(
                said.errors,
                "error: 2 definitions cannot be changed; nothing was changed\n"
            );
            assert!(
                said.out.contains(
                    "! feed orders\n    shards: 2 → 3\n    the number of shards is changed by `changefeed feed \
                     reshard orders --shards 3`: its readers have to go on in the new ones\n"
                ),
                "{}",
                said.out
            );
            assert!(
                said.out.contains("`changefeed watch drop mail` first\n"),
                "{}",
                said.out
            );
        }
        stage.write(ONE_OF_EACH);
        assert_eq!(stage.out("apply"), "nothing to do\n");
    });
}

#[test]
fn tables_are_found_as_the_database_finds_them() {
    on_every_database(async |stage| {
        let app = &stage.app;
        app.run("create table \"Weird name\" (\"Id\" integer primary key, \"order\" text)")
            .await;
        stage.write(
            "[feeds.weird]\nfrom = '\"Weird name\"'\nshards = 2\nshard_by = '\"order\"'\n\
             [feeds.upper]\nfrom = \"ORDERS\"\nshard_by = \"Customer_ID\"\n\
             [triggers.weird]\ntable = '\"Weird name\"'\nupdate = ['\"order\"']\nin_process = true\n\
             [watches.weird]\ntable = '\"Weird name\"'\nexec = \"cat\"\n",
        );
        stage.out("apply");
        assert_eq!(stage.out("apply"), "nothing to do\n");
        stage.write("[feeds.x]\nfrom = \"nosuch\"");
        let said = stage.run("apply");
        assert_eq!(said.code, 1);
        assert!(
            said.errors
                .starts_with("error: changefeed.toml:4:8: there is no table nosuch\n"),
            "{}",
            said.errors
        );
    });
}

/// Its events would be those of a table that they do not come from.
#[test]
fn a_trigger_does_not_go_to_another_table() {
    on_every_database(async |stage| {
        let app = &stage.app;
        app.run("create table other (id integer primary key)").await;
        let on = |table: &str| format!("[triggers.t]\ntable = \"{table}\"\nin_process = true\n");
        stage.write(&on("orders"));
        stage.out("apply");
        app.run("insert into orders values (1, 7, 'new', 'x')")
            .await;
        stage.write(&on("other"));
        for args in ["apply", "apply --check"] {
            let said = stage.run(args);
            assert_eq!(said.code, 2, "{said:?}");
            let plan = said.out.replace("public.", "").replace("dbo.", "");
            let refused = "! trigger t\n    table: \"orders\" → \"other\"\n    trigger 't' is on \
                           table orders: drop it first, or give the new one another name\n";
            assert!(plan.contains(refused), "{plan}");
        }
        let said = stage.run("trigger create t --table other --in-process --replace");
        assert_eq!(said.code, 1, "{said:?}");
        assert_eq!(
            said.errors.replace("public.", "").replace("dbo.", ""),
            "error: trigger 't' is on table orders\n  hint: drop it first, or give the new one \
             another name\n"
        );
        let events = stage.json("event list");
        assert_eq!(events.len(), 1, "{events:?}");
        let event = events[0].to_string();
        assert!(
            event.contains("orders\"") && !event.contains("other"),
            "{event}"
        );
        // The same table by its new name is no other.
        app.run("alter table orders rename to renamed").await;
        stage.write(&on("renamed"));
        stage.out("apply");
        stage.out("trigger create t --table renamed --in-process --manual --replace");
    });
}

#[test]
fn where_a_watch_begins_is_shown_when_it_is_created() {
    on_every_database(async |stage| {
        let watch = "[watches.w]\ntable = \"orders\"\nexec = \"cat\"\n";
        stage.write(&format!("{watch}from = \"beginning\"\n"));
        let plan = stage.out("apply");
        assert!(plan.contains("\n    from = \"beginning\"\n"), "{plan}");
        assert_eq!(stage.out("apply"), "nothing to do\n");
        stage.out("watch drop w --yes");
        stage.write(watch);
        let plan = stage.out("apply");
        assert!(!plan.contains("from"), "{plan}");
    });
}

#[test]
fn an_id_that_is_taken_is_found_while_planning() {
    on_every_database(async |stage| {
        stage.write("[feeds.b]\nid = 5\n[feeds.a]\nid = 5\n");
        let wrong = |said: crate::apply::Said, what: &str| {
            assert_eq!((said.code, &*said.errors), (2, what), "{said:?}");
        };
        let hint = "  hint: give it another id, or none for the next that is free\n";
        let twice = stage.run("apply --check").errors;
        assert!(twice.starts_with("error: changefeed.toml:"), "{twice}");
        assert!(
            twice.contains("cannot have the id 5, which feed '"),
            "{twice}"
        );
        // One without a number does not take that of another.
        stage.write("[feeds.a]\n[feeds.b]\nid = 1\n");
        stage.out("apply");
        assert_eq!(stage.defined(), ["feed a", "feed b"]);
        stage.write("[feeds.c]\nid = 1\n");
        wrong(
            stage.run("apply --check"),
            &format!(
                "error: changefeed.toml:4:8: feed 'c' cannot have the id 1, which feed 'b' has\n{hint}"
            ),
        );
        // Unless that goes.
        stage.out("apply --prune --yes");
        assert_eq!(stage.defined(), ["feed c"]);
    });
}
