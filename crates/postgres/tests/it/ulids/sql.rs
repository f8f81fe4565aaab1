//! The pure SQL interface, over several round trips, as an application in any language uses it.

mod incidents;
mod rights;

use std::time::{Duration, Instant};

use changefeed_core::Ulid;
use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

use crate::ulids::support::{Scene, options, scene, write};

const COMMIT: &str = "select changefeed.commit_ulid_transaction()";

fn begin(shard: i32) -> String {
    format!("select changefeed.begin_ulid_transaction('{FEED}', {shard})")
}

fn row(note: &str) -> String {
    format!("insert into event values (0, changefeed.new_ulid(), '{note}')")
}

/// What a statement is refused with: its SQLSTATE and words.
async fn refused(session: &PostgresSession, sql: &str) -> String {
    let answer = session.execute(sql).await;
    answer
        .err()
        .unwrap_or_else(|| panic!("not refused: {sql}"))
        .message
}

async fn run_all(session: &PostgresSession, statements: &[&str]) {
    for sql in statements {
        if let Err(error) = session.execute(sql).await {
            panic!("{error}\nin {sql}");
        }
    }
}

fn ulid(text: &str) -> Ulid {
    let hex = text.strip_prefix("\\x").unwrap();
    let value = u128::from_str_radix(hex, 16).unwrap();
    Ulid::from_bytes(value.to_be_bytes())
}

async fn ulids(scene: &Scene) -> Vec<Ulid> {
    let rows = scene.admin.query("select ulid from event order by ulid");
    rows.await
        .unwrap()
        .into_iter()
        .map(|row| ulid(row[0].as_deref().unwrap()))
        .collect()
}

/// Statement by statement, in one round trip, and in a procedure; Rust writers in between.
#[test]
fn the_documented_way_works() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        run_all(
            &session,
            &["begin", &begin(0), &row("a"), &row("b"), COMMIT, "commit"],
        )
        .await;
        write(&scene.store, "rust").await;
        run_all(
            &session,
            &[&format!(
                "begin; {}; {}; {COMMIT}; commit",
                begin(0),
                row("c")
            )],
        )
        .await;
        session
            .execute(&format!(
                "create procedure publish(note text) language plpgsql as $$ begin \
                   perform changefeed.begin_ulid_transaction('{FEED}', 0); \
                   insert into event values (0, changefeed.new_ulid(), note); \
                   perform changefeed.commit_ulid_transaction(); commit; \
                 end $$"
            ))
            .await
            .unwrap();
        run_all(&session, &["call publish('d')", "call publish('e')"]).await;
        write(&scene.store, "rust again").await;
        assert_eq!(
            scene.notes().await,
            ["a", "b", "rust", "c", "d", "e", "rust again"]
        );
        assert_eq!(scene.locks().await, 0);
        assert_eq!(scene.incidents().await, 0);
        // A transaction without a row, and one of ULIDs that nobody stores.
        run_all(&session, &["begin", &begin(0), COMMIT, "commit"]).await;
        run_all(
            &session,
            &["begin", &begin(0), "select changefeed.new_ulid()", COMMIT],
        )
        .await;
        run_all(&session, &["commit"]).await;
    });
}

/// Whatever a session's formats are, which a library of ours would set.
#[test]
fn settings_of_the_session_do_not_matter() {
    run(async {
        let scene = scene().await;
        let mut count = 0;
        for settings in [
            "set datestyle = 'SQL, DMY'; set timezone = 'Asia/Kolkata'",
            "set datestyle = 'Postgres, MDY'; set timezone = 'Asia/Shanghai'",
            "set datestyle = 'German'; set timezone = 'America/Sao_Paulo'",
            "set bytea_output = 'escape'; set extra_float_digits = -15",
            "set search_path = ''; set lock_timeout = '1ms'",
            "set standard_conforming_strings = off; set synchronous_commit = off",
        ] {
            let session = scene.session().await;
            run_all(&session, &[settings, "begin", &begin(0)]).await;
            run_all(
                &session,
                &[
                    "insert into public.event values (0, changefeed.new_ulid(), 'x')",
                    COMMIT,
                    "commit",
                ],
            )
            .await;
            count += 1;
            let off: f64 = scene
                .admin
                .value(
                    "select abs(extract(epoch from clock_timestamp() - time)) \
                     from changefeed.shard_ulid",
                )
                .await
                .parse()
                .unwrap();
            assert!(off < 30.0, "{settings}: the shard's time is off by {off} s");
            let state = scene
                .admin
                .value("select encode(ulid_high, 'hex') from changefeed.shard_ulid")
                .await;
            let high = u64::from_str_radix(&state, 16).unwrap();
            let newest = *ulids(&scene).await.last().unwrap();
            assert_eq!(high, newest.high(), "{settings}");
        }
        let all = ulids(&scene).await;
        assert_eq!(all.len(), count);
        let notes = scene.admin.query("select note from event");
        assert_eq!(notes.await.unwrap().len(), count);
    });
}

/// In the order of the statement, whatever the plan is.
#[test]
fn ulid_sequence_follows_order_by() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let forms = [
            // As documented, and with the order next to the function.
            "select 0, changefeed.ulid_sequence(nextval('changefeed.sequence')), s.note \
             from (select * from form_input order by submitted desc) s",
            "select 0, changefeed.ulid_sequence(nextval('changefeed.sequence')), note \
             from form_input order by submitted desc",
        ];
        run_all(
            &session,
            &[
                "create table form_input (note text, submitted int)",
                "insert into form_input select 'n' || i, (i * 7919) % 1009 \
                 from generate_series(1, 1000) i",
                "create index on form_input (submitted)",
            ],
        )
        .await;
        for plan in ["on", "off"] {
            for form in forms {
                run_all(
                    &session,
                    &[
                        &format!("set enable_sort = {plan}"),
                        "begin",
                        &begin(0),
                        &format!("insert into event (shard, ulid, note) {form}"),
                        COMMIT,
                        "commit",
                    ],
                )
                .await;
                let wrong = session
                    .query(
                        "select count(*) from (select submitted, \
                         lag(submitted) over (order by ulid) as before \
                         from event join form_input using (note)) t where submitted > before",
                    )
                    .await
                    .unwrap();
                assert_eq!(wrong[0][0].as_deref(), Some("0"), "{plan}: {form}");
                run_all(&session, &["delete from event"]).await;
            }
        }
    });
}

/// In one statement, with one time, in the given order; and the next writer goes on after them.
#[test]
fn a_million_ulids_in_one_statement() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let began = Instant::now();
        run_all(
            &session,
            &[
                "create table many (ulid bytea, n int)",
                "begin",
                &begin(0),
                "insert into many \
                 select changefeed.ulid_sequence(nextval('changefeed.sequence')), i \
                 from generate_series(1000000, 1, -1) i",
                COMMIT,
                "commit",
            ],
        )
        .await;
        eprintln!("a million ULIDs: {} ms", began.elapsed().as_millis());
        let told = session
            .query(
                "select count(*), count(distinct ulid), count(distinct substring(ulid for 6)), \
                   min(length(ulid)), max(length(ulid)), \
                   count(*) filter (where n >= before), \
                   (select m.ulid from many m order by m.ulid desc limit 1) \
                 from (select ulid, n, lag(n) over (order by ulid) as before from many) t",
            )
            .await
            .unwrap();
        let told: Vec<&str> = told[0].iter().map(|v| v.as_deref().unwrap()).collect();
        assert_eq!(told[..6], ["1000000", "1000000", "1", "16", "16", "0"]);
        assert!(write(&scene.store, "next").await > ulid(told[6]));
    });
}

/// Each with its code and a sentence, and nothing is published.
#[test]
fn misuse_is_named() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let one = begin(0);
        let other = begin(1);
        let (row, new) = (row("x"), "select changefeed.new_ulid()");
        let sequence = "select changefeed.ulid_sequence(nextval('changefeed.sequence'))";
        let none = "CF004: changefeed: there is no ULID transaction here; call \
                    begin_ulid_transaction after BEGIN";
        let nothing = "CF004: changefeed: there is no ULID transaction to commit; call \
                       begin_ulid_transaction after BEGIN";
        let verified = "CF004: changefeed: this ULID transaction is verified already; commit";
        let open = format!(
            "CF004: changefeed: a ULID transaction of {FEED}/0 is already open in this \
             transaction; name all shards in begin_ulid_shards, or use add_ulid_shard"
        );
        let level = |level: &str| {
            format!(
                "CF004: changefeed: begin_ulid_transaction needs the isolation level read \
                 committed: with {level} the snapshot is older than the lock, and the shard's \
                 state would be stale"
            )
        };
        let hint = |time: &str| {
            format!("select changefeed.begin_ulid_transaction('{FEED}', 0, time_hint => '{time}')")
        };
        let cases: Vec<(Vec<&str>, String)> = vec![
            // Outside of a transaction.
            (vec![new], none.to_owned()),
            (vec![sequence], none.to_owned()),
            (vec![COMMIT], nothing.to_owned()),
            // Within one, but without a beginning.
            (vec!["begin", new], none.to_owned()),
            (vec!["begin", &row], none.to_owned()),
            (vec!["begin", COMMIT], nothing.to_owned()),
            // Twice, and another shard in between.
            (vec!["begin", &one, &one], open.clone()),
            (vec!["begin", &one, &other], open.clone()),
            (vec!["begin", &one, &row, COMMIT, &other], open.clone()),
            (
                vec!["begin", &one, &row, COMMIT, COMMIT],
                "CF004: changefeed: commit_ulid_transaction was already called; commit".to_owned(),
            ),
            // Too late.
            (vec!["begin", &one, COMMIT, new], verified.to_owned()),
            (vec!["begin", &one, COMMIT, sequence], verified.to_owned()),
            (
                vec!["begin", &one, "set constraints all immediate", new],
                verified.to_owned(),
            ),
            // It would be verified at once, and keep its shard locked.
            (
                vec!["begin", "set constraints all immediate", &one],
                "CF004: changefeed: this transaction has said SET CONSTRAINTS ... IMMEDIATE; begin a ULID \
                 transaction before that"
                    .to_owned(),
            ),
            // Isolation.
            (
                vec!["begin isolation level repeatable read", &one],
                level("repeatable read"),
            ),
            (
                vec!["begin isolation level serializable", &one],
                level("serializable"),
            ),
            (
                vec![
                    "begin",
                    &one,
                    "select changefeed.rollback_ulid_transaction()",
                ],
                "CF004: changefeed: the ULID transaction is rolled back".to_owned(),
            ),
        ];
        for (statements, expected) in cases {
            let (last, before) = statements.split_last().unwrap();
            run_all(&session, before).await;
            assert_eq!(refused(&session, last).await, *expected, "{statements:?}");
            session.execute("rollback").await.unwrap();
            assert_eq!(scene.locks().await, 0, "{statements:?}");
        }
        for time in [
            "1969-12-31 23:59:59Z",
            "10889-08-02 05:31:50.656Z",
            "infinity",
        ] {
            session.execute("begin").await.unwrap();
            let answer = refused(&session, &hint(time)).await;
            assert!(
                answer.starts_with("CF004: changefeed: a ULID holds times from 1970 to 10889"),
                "{answer}"
            );
            session.execute("rollback").await.unwrap();
        }
        for bad in ["9", "null"] {
            session.execute("begin").await.unwrap();
            let sql = format!("select changefeed.begin_ulid_transaction('{FEED}', 0, {bad})");
            let answer = refused(&session, &sql).await;
            assert!(answer.starts_with("CF004: changefeed: timeout"), "{answer}");
            session.execute("rollback").await.unwrap();
        }
        assert_eq!(scene.notes().await, [""; 0]);
        assert_eq!(scene.incidents().await, 0);
        // After all that the session is as good as new.
        run_all(&session, &["begin", &one, &row, COMMIT, "commit"]).await;
        assert_eq!(scene.notes().await, ["x"]);
    });
}

/// Misuse is told at once, not after a wait for the other shard.
#[test]
fn a_second_shard_is_refused_without_waiting_for_it() {
    run(async {
        let scene = scene().await;
        let (holder, session) = (scene.session().await, scene.session().await);
        run_all(&holder, &["begin", &begin(1)]).await;
        run_all(&session, &["begin", &begin(0)]).await;
        let began = Instant::now();
        let answer = refused(&session, &begin(1)).await;
        assert!(answer.starts_with("CF004: "), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(1));
    });
}

/// Taken before and after the beginning.
#[test]
fn savepoints_take_back_what_they_should() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let (one, two) = (begin(0), begin(1));
        // Before: as if it had not begun, so another may begin, even of another shard.
        run_all(
            &session,
            &["begin", "savepoint s", &one, &row("no"), "rollback to s"],
        )
        .await;
        assert_eq!(scene.locks().await, 0);
        let answer = refused(&session, COMMIT).await;
        assert!(answer.starts_with("CF004: "), "{answer}");
        run_all(&session, &["rollback to s", &two, COMMIT, "commit"]).await;
        // A transaction that took everything back commits like any other.
        run_all(
            &session,
            &["begin", "savepoint s", &one, "rollback to s", "commit"],
        )
        .await;
        // After: the rows are taken back, the transaction goes on, with ULIDs of its own.
        run_all(&session, &["begin", &one, &row("a"), "savepoint s"]).await;
        run_all(&session, &[&row("no"), "rollback to s", &row("b")]).await;
        // The verification, too: a raw commit does it again.
        run_all(&session, &["savepoint s", COMMIT, "rollback to s"]).await;
        run_all(&session, &[&row("c"), COMMIT, "commit"]).await;
        assert_eq!(scene.notes().await, ["a", "b", "c"]);
        run_all(&session, &["begin", &one, &row("raw"), "savepoint s"]).await;
        run_all(&session, &[COMMIT, "rollback to s", "commit"]).await;
        // Released savepoints change nothing.
        run_all(
            &session,
            &[
                "begin",
                "savepoint s",
                &one,
                "release s",
                &row("d"),
                COMMIT,
                "commit",
            ],
        )
        .await;
        assert_eq!(scene.notes().await, ["a", "b", "c", "raw", "d"]);
        assert_eq!(scene.locks().await, 0);
    });
}

/// Our own options in SQL are those of Rust.
#[test]
fn a_time_hint_is_the_time_of_the_ulids() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let hint = format!(
            "select changefeed.begin_ulid_transaction('{FEED}', 0, \
             time_hint => '2026-01-31 12:00:00.1239Z')"
        );
        run_all(&session, &["begin", &hint, &row("a"), COMMIT, "commit"]).await;
        let all = ulids(&scene).await;
        assert_eq!(all[0].time(), 1_769_860_800_123);
        assert_eq!(options().time_hint, None);
        assert!(write(&scene.store, "now").await > all[0]);
    });
}
