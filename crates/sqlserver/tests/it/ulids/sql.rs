//! The T-SQL interface, as an application in any language uses it.

use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

use crate::ulids::support::{COMMIT, begin, refused, row, run_all, scene, write};

/// In one batch, batch by batch, and in a procedure; Rust writers in between.
#[test]
fn the_documented_way_works() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        run_all(&session, &[&begin(), &row("a"), &row("b"), COMMIT]).await;
        write(&scene.store, "rust").await;
        let whole = format!("set xact_abort on; {}; {}; {COMMIT}", begin(), row("c"));
        run_all(&session, &[&whole]).await;
        let procedure = format!(
            "create procedure publish @note nvarchar(100) as begin set xact_abort on; {}; \
             declare @u binary(16); exec changefeed.new_ulid @ulid = @u output; \
             insert into event (shard, ulid, note) values (0, @u, @note); {COMMIT}; end",
            begin()
        );
        run_all(
            &session,
            &[&procedure, "exec publish 'd'", "exec publish 'e'"],
        )
        .await;
        let many = format!(
            "{}; insert into event (shard, ulid, note) \
             select 0, changefeed.ulid_sequence(next value for changefeed.sequence), 'f' \
             from (values (1), (2), (3)) three (n); {COMMIT}",
            begin()
        );
        run_all(&session, &[&many]).await;
        write(&scene.store, "rust again").await;
        assert_eq!(
            scene.notes().await,
            ["a", "b", "rust", "c", "d", "e", "f", "f", "f", "rust again"]
        );
        assert_eq!(scene.incidents().await, 0);
        let left = "select count(*) from changefeed.ulid_life";
        assert_eq!(scene.admin.number(left).await, 0);
    });
}

/// With its number, and the transaction is gone.
#[test]
fn misuse_is_named() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let begin = begin();
        for (sql, words) in [
            (
                format!("exec changefeed.begin_ulid_transaction '{FEED}', 0"),
                "there is no transaction",
            ),
            (
                "begin transaction; exec changefeed.begin_ulid_transaction null, 0".to_owned(),
                "needs a feed and a shard",
            ),
            (
                format!("begin transaction; exec changefeed.begin_ulid_transaction '{FEED}', 0, 9"),
                "at least 10 ms",
            ),
            (
                format!("{begin}; exec changefeed.begin_ulid_transaction '{FEED}', 1"),
                "is already open in this transaction",
            ),
            (
                format!("{begin}; begin transaction; exec changefeed.commit_ulid_transaction"),
                "an inner transaction only",
            ),
            (
                format!(
                    "begin transaction; save transaction s; exec changefeed.begin_ulid_transaction '{FEED}', 0; rollback transaction s; {COMMIT}"
                ),
                "taken back by a savepoint",
            ),
            (COMMIT.to_owned(), "there is no ULID transaction to commit"),
            (row("x"), "there is no ULID transaction here"),
            (
                format!("{begin}; exec changefeed.report_incident '{FEED}', 0"),
                "must not be called inside a transaction",
            ),
            (
                format!("{begin}; exec changefeed.lock_ulid_shard '{FEED}', 0"),
                "before the transaction begins",
            ),
        ] {
            let said = refused(&session, &sql).await;
            assert!(
                said.starts_with("55604: ") && said.contains(words),
                "{sql}: {said}"
            );
            let end = "if @@trancount > 0 rollback transaction; \
                       exec changefeed.rollback_ulid_transaction";
            run_all(&session, &[end]).await;
        }
        let said = refused(&session, "select changefeed.ulid_sequence(5)").await;
        assert!(said.contains("there is no ULID transaction here"), "{said}");
        run_all(&session, &[&begin]).await;
        let foreign = "select changefeed.ulid_sequence(-9223372036854775808)";
        let said = refused(&session, foreign).await;
        assert!(
            said.contains("next value for changefeed.sequence"),
            "{said}"
        );
        run_all(&session, &["if @@trancount > 0 rollback transaction"]).await;
        // And the shard is free.
        write(&scene.store, "goes on").await;
        assert_eq!(scene.notes().await, ["goes on"]);
    });
}

/// Whoever swallows the error still cannot commit, whatever XACT_ABORT is.
#[test]
fn what_failed_cannot_be_committed() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        for setting in ["off", "on"] {
            let begin = format!("set xact_abort {setting}; {}", begin());
            run_all(&session, &[&begin, &row("no")]).await;
            // Somebody has judged it dead.
            scene
                .admin
                .run(&format!(
                    "insert into changefeed.incident (feed_id, shard_id, count) \
                     select '{FEED}', 0, 0 where not exists (select 1 from changefeed.incident); \
                     update changefeed.incident set count = count + 1"
                ))
                .await;
            let swallowed = "begin try exec changefeed.commit_ulid_transaction; end try \
                 begin catch select error_number(); end catch; commit transaction";
            refused(&session, swallowed).await;
            run_all(&session, &["if @@trancount > 0 rollback transaction"]).await;
            assert_eq!(scene.notes().await, [""; 0]);
        }
    });
}

/// Nothing of ours runs at a COMMIT, but what was given away is not given again.
#[test]
fn ulids_grow_after_a_commit_that_nobody_verified() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        // In one millisecond, so that only the counter keeps them apart.
        let begin = format!(
            "begin transaction; exec changefeed.begin_ulid_transaction '{FEED}', 0, 30000, '2031-01-01'"
        );
        run_all(&session, &[&begin, &row("a"), COMMIT]).await;
        run_all(&session, &[&begin, &row("b"), "commit transaction"]).await;
        run_all(&session, &[&begin, &row("c"), COMMIT]).await;
        assert_eq!(scene.notes().await, ["a", "b", "c"]);
        let left = "select count(*) from changefeed.ulid_life";
        assert_eq!(scene.admin.number(left).await, 0);
    });
}

/// Drivers that turn off auto-commit have implicit transactions: nobody says BEGIN TRANSACTION, and whatever is
/// called outside of one leaves none behind.
#[test]
fn with_implicit_transactions_nothing_is_missed_and_nothing_left_open() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let enter =
            format!("exec changefeed.begin_ulid_transaction '{FEED}', 0, 30000, null, 100000");
        let open = "if @@trancount > 0 throw 50000, 'a transaction is open', 1";
        run_all(&session, &["set implicit_transactions on"]).await;
        run_all(&session, &[&enter, &row("a"), COMMIT, open]).await;
        write(&scene.store, "rust").await;
        run_all(&session, &[&enter, &row("no"), "rollback transaction"]).await;
        let report = format!("exec changefeed.report_incident '{FEED}', 0");
        let lock = format!("exec changefeed.lock_ulid_shard '{FEED}', 0, 30000");
        for call in [
            "exec changefeed.rollback_ulid_transaction",
            report.as_str(),
            lock.as_str(),
            "exec changefeed.unlock_ulid_shard",
        ] {
            run_all(&session, &[call, open]).await;
        }
        // BEGIN TRANSACTION begins two.
        let two = format!("begin transaction; {enter}; exec changefeed.commit_ulid_transaction");
        let said = refused(&session, &two).await;
        assert!(said.contains("leave it out"), "{said}");
        run_all(&session, &["if @@trancount > 0 rollback transaction"]).await;
        run_all(&session, &["exec changefeed.rollback_ulid_transaction"]).await;
        run_all(&session, &[&enter, &row("b"), COMMIT, open]).await;
        assert_eq!(scene.notes().await, ["a", "rust", "b"]);
        assert_eq!(scene.incidents().await, 0);
    });
}

/// The lock comes before the snapshot, and is freed on every path.
#[test]
fn with_a_snapshot_the_lock_is_taken_first() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let lock = format!("exec changefeed.lock_ulid_shard '{FEED}', 0, 30000");
        let begin = format!(
            "set transaction isolation level snapshot; begin transaction; \
             exec changefeed.begin_ulid_transaction '{FEED}', 0, 30000"
        );
        let said = refused(&session, &begin).await;
        assert!(
            said.starts_with("55604: ") && said.contains("lock_ulid_shard"),
            "{said}"
        );
        let end = "if @@trancount > 0 rollback transaction; \
                   exec changefeed.rollback_ulid_transaction";
        run_all(&session, &[end, &lock, &begin, &row("a"), COMMIT]).await;
        run_all(&session, &["exec changefeed.unlock_ulid_shard"]).await;
        write(&scene.store, "b").await;
        run_all(&session, &[&lock, &begin, &row("no"), end]).await;
        write(&scene.store, "c").await;
        assert_eq!(scene.notes().await, ["a", "b", "c"]);
        assert_eq!(scene.incidents().await, 0);
    });
}
