//! Secrets are in no file, in no plan, and where they are needed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use changefeed_receiver::Receiver;
use changefeed_testkit::process::Running;

use crate::apply::on_every_database;

#[test]
fn a_file_with_a_secret_is_refused_without_repeating_it() {
    on_every_database(async |stage| {
        let trigger = "[triggers.t]\ntable = \"orders\"\n";
        for (keys, says) in [
            (
                "webhook = \"https://x.example\"\nheader = { Authorization = \"hunter2\" }",
                "the header 'Authorization' looks like a secret, which is not written in this file: \
                 write Authorization = { env = \"NAME\" }",
            ),
            (
                "webhook = \"https://me:hunter2@x.example/\"",
                "the webhook's URL holds a secret, which is not written in this file: write \
                 webhook = { env = \"NAME\" }",
            ),
            (
                "in_process = true\nsecret = \"hunter2\"",
                "'secret' is a secret, or comes from elsewhere: write { env = \"NAME\" }",
            ),
        ] {
            stage.write(&format!("{trigger}{keys}"));
            let said = stage.run("apply");
            assert_eq!(said.code, 2, "{said:?}");
            assert!(said.errors.contains(says), "{said:?}");
            assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
        }
        stage.write(
            "[watches.w]\ntable = \"orders\"\nwebhook = \"https://x.example/?token=hunter2\"",
        );
        let said = stage.run("apply");
        assert_eq!(said.code, 2, "{said:?}");
        assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
    });
}

#[test]
fn a_plan_does_not_show_what_somebody_defined_by_hand() {
    on_every_database(async |stage| {
        stage.out(
            "trigger create t --table orders --webhook https://me:hunter2@x.example/ \
             --header Authorization=hunter2",
        );
        stage.write(
            "[triggers.t]\ntable = \"orders\"\nwebhook = { env = \"URL\" }\n\
             header = { Authorization = { env = \"TOKEN\" } }",
        );
        for args in ["apply --check", "apply --check --json", "apply"] {
            let said = stage.run(args);
            assert!(said.out.contains("Authorization"), "{said:?}");
            assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
        }
        assert_eq!(stage.out("apply"), "nothing to do\n");
    });
}

/// `serve` takes where it listens from the file, and what stands behind a variable too.
#[test]
fn a_secret_of_a_file_signs_requests() {
    on_every_database(async |stage| {
        let receiver = Receiver::start().await.unwrap();
        let secret = stage.dir.path().join("secret");
        std::fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        stage.write(&format!(
            "[secrets]\nSHOP_SECRET = {{ file = \"secret\" }}\n\
             [http]\nlisten = \"127.0.0.1:0\"\n\
             [triggers.t]\ntable = \"orders\"\nwebhook = \"{}\"\nsecret = {{ env = \"SHOP_SECRET\" }}\n\
             [watches.w]\ntable = \"orders\"\nwebhook = \"{}\"\nsecret = {{ env = \"SHOP_SECRET\" }}\n",
            receiver.url("/trigger"),
            receiver.url("/watch")
        ));
        stage.out("apply");
        assert!(!stage.out("doctor").contains("SHOP_SECRET"));
        let mut serving = Running::start(
            stage
                .command("serve")
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        );
        let mut said = String::new();
        let output = serving.child().stdout.take().unwrap();
        BufReader::new(output).read_line(&mut said).unwrap();
        assert!(said.starts_with("serving at http://127.0.0.1:"), "{said}");
        assert!(!said.contains(":8787"), "{said}");
        stage
            .app
            .run("insert into orders values (1, 7, 'new', 'x')")
            .await;
        let requests = receiver.wait_for(2).await.unwrap();
        for request in &requests {
            let signature = request.header("webhook-signature");
            assert!(
                signature.is_some_and(|s| s.starts_with("v1,")),
                "{request:?}"
            );
        }
        let mut paths: Vec<&str> = requests.iter().map(|r| r.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/trigger", "/watch"]);
    });
}
