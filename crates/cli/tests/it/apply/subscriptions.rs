//! `[subscriptions.NAME]`: created with their feeds, changed, paused, refused and dropped.

use serde_json::json;

use crate::apply::on_every_database;

const BUS: &str = r#"
[feeds.orders]
from = "orders"
images = true
shards = 2
shard_by = "customer_id"

[subscriptions.bus]
feed = "orders"
to = "file:/var/lib/bus-{shard}"
when = "status = 'paid'"
columns = ["id", "status"]
from = "now"
batch = 50
"#;

#[test]
fn a_subscription_comes_with_its_feed_and_is_changed_and_dropped() {
    on_every_database(async |stage| {
        stage.write(BUS);
        let checked = stage.run("apply --check");
        assert_eq!((checked.code, &*checked.errors), (3, ""));
        let plan = stage.out("apply");
        assert!(
            plan.contains("+ subscription bus\n    feed = \"orders\"\n    to = \"file:/var/lib/bus-{shard}\"\n"),
            "{plan}"
        );
        assert!(plan.contains("    from = \"now\"\n"), "{plan}");
        assert_eq!(stage.out("apply"), "nothing to do\n");
        let shown = stage.json("subscription show bus").remove(0);
        assert_eq!(shown["columns"], json!(["id", "status"]));
        assert_eq!(shown["shards"][1]["lag_changes"], 0, "{shown}");

        // Where it began is over; the rest is changed.
        stage.write(
            &BUS.replace("from = \"now\"", "from = \"beginning\"\npaused = true")
                .replace("batch = 50", "batch = 60"),
        );
        let plan = stage.out("apply");
        assert!(
            plan.contains("~ subscription bus\n    batch: 50 → 60\n    paused: false → true\n"),
            "{plan}"
        );
        assert_eq!(
            stage.json("subscription show bus")[0]["paused"],
            "by changefeed.toml"
        );
        assert_eq!(stage.out("apply"), "nothing to do\n");

        // Its feed goes with it, or stays.
        stage.write("");
        let left = stage.out("apply");
        assert!(
            left.contains("left alone without --prune: subscription bus, feed orders"),
            "{left}"
        );
        let plan = stage.out("apply --prune --yes");
        assert!(plan.contains("- subscription bus\n"), "{plan}");
        assert!(stage.json("subscription list").is_empty());
    });
}

#[test]
fn what_cannot_be_pushed_like_this_is_refused_with_its_place() {
    on_every_database(async |stage| {
        for (text, said) in [
            (BUS.replace("images = true", ""), "does not keep them"),
            (
                BUS.replace("feed = \"orders\"", "feed = \"other\""),
                "which there is not",
            ),
            (BUS.replace("status = 'paid'", "now()"), "the condition"),
            (BUS.replace("-{shard}", ""), "each needs a file of its own"),
            (BUS.replace("batch", "bach"), "did you mean 'batch'"),
            (
                BUS.replace("file:/var/lib/bus-{shard}", "nats://me:hush@127.0.0.1/x"),
                "to = { env = \"NAME\" }",
            ),
        ] {
            stage.write(&text);
            let refused = stage.run("apply");
            assert_eq!(refused.code, 2, "{said}: {}", refused.errors);
            assert!(refused.errors.contains(said), "{said}: {}", refused.errors);
            assert!(!refused.errors.contains("hush"), "{}", refused.errors);
            // Every command reads the file.
            stage.write("");
            assert!(stage.json("feed list").is_empty(), "{said}");
        }
        // A password comes from the environment.
        stage.write(&BUS.replace("\"file:/var/lib/bus-{shard}\"", "{ env = \"BUS\" }"));
        let mut command = stage.command("apply");
        command.env("BUS", "nats://me:hush@127.0.0.1:4222/shop");
        let plan = super::finish(&mut command);
        assert_eq!(plan.code, 0, "{}", plan.errors);
        assert!(!plan.out.contains("hush"), "{}", plan.out);

        stage.write(
            &BUS.replace("feed = \"orders\"", "feed = \"second\"")
                .replace(
                    "[subscriptions.bus]",
                    "[feeds.second]\nfrom = \"orders\"\nimages = true\n\n[subscriptions.bus]",
                ),
        );
        let refused = stage.run("apply");
        assert_eq!(refused.code, 2);
        assert!(
            refused
                .out
                .contains("the feed of a subscription cannot be changed"),
            "{}",
            refused.out
        );
    });
}
