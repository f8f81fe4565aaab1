//! Chance schemas and chance statements, with the table itself as the oracle.
//!
//! Each case makes a table with keys, unique indexes, defaults, self references and triggers of the
//! application by chance, captures it by a feed, an event trigger and a watch, and runs statements.
//! After every statement the events, replayed in order into an empty model, must be the table; every
//! row that came, went or changed must have a change in the feed, at its old and its new place; and
//! the noted keys of the watch must say what was and what is.
//!
//! A case is named by its seed, which is printed when it fails. `CHANGEFEED_SOAK=1` runs for minutes,
//! `CHANGEFEED_FUZZ_SEED=N` runs one case, and `CHANGEFEED_FUZZ_SECONDS=N` runs for that long.

mod chance;
mod oracle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use changefeed_core::{TableName, TriggerStore, WatchSpec, WatchStore};

use crate::event_support::everything;
use crate::support::Lab;
use chance::{Chance, Schema};
use oracle::Oracle;

const STATEMENTS: usize = 30;

async fn run(seed: u64) -> Result<(), String> {
    let mut chance = Chance::new(seed);
    let schema = Schema::by(&mut chance);
    let lab = Lab::new().await;
    let app = lab.app();
    let setup = format!(
        "pragma synchronous = off; pragma recursive_triggers = {}; pragma foreign_keys = on; {}",
        schema.recursive,
        schema.tables.join(";\n")
    );
    // Not every schema that chance makes is one; a wrong foreign key shows only when it is used.
    let usable = app
        .execute_batch(&setup)
        .and_then(|()| app.prepare("delete from t").map(|_| ()));
    if usable.is_err() {
        return Ok(());
    }
    app.pragma_update(None, "foreign_keys", schema.foreign_keys)
        .unwrap();
    let early = chance.below(2) == 0;
    let triggers = schema.triggers.join(";\n");
    if early && app.execute_batch(&triggers).is_err() {
        return Ok(());
    }
    let shards = [1, 3][chance.below(2)];
    let feed = lab.captured("t", (shards > 1).then_some("a"), shards).await;
    lab.trigger(&everything("t")).await;
    let spec = WatchSpec::new("f".parse().unwrap(), TableName::unqualified("t"));
    let watch = lab.store.open_watch(&spec).await.unwrap();
    if !early {
        if app.execute_batch(&triggers).is_err() {
            return Ok(());
        }
        lab.store.refresh_triggers().await.unwrap();
    }
    let mut told = vec![setup, triggers];
    let oracle = Oracle {
        app: &app,
        schema: &schema,
        feed: feed.id.0,
        shards,
        log: format!("changefeed_changes_{}", watch.table_id),
    };
    // Triggers that fire each other may take for ever; after so many steps SQLite undoes the statement.
    let steps = Arc::new(AtomicU32::new(0));
    let taken = Arc::clone(&steps);
    app.progress_handler(
        1_000_000,
        Some(move || taken.fetch_add(1, Ordering::Relaxed) > 20),
    )
    .unwrap();
    let mut before = oracle.look();
    for _ in 0..STATEMENTS {
        let statement = schema.statement(&mut chance);
        let in_transaction = !app.is_autocommit();
        steps.store(0, Ordering::Relaxed);
        let answer = app.execute_batch(&statement);
        told.push(format!("{statement}; -- {answer:?}"));
        let failed = |what: String| {
            Err(format!(
                "seed {seed} ({} first, foreign keys {}): {what}\n{}",
                if early {
                    "application's triggers"
                } else {
                    "ours"
                },
                schema.foreign_keys,
                told.join(";\n")
            ))
        };
        if let Err(error) = &answer {
            let said = error.to_string();
            if ["changefeed", "no such", "ambiguous", "syntax", "datatype"]
                .iter()
                .any(|word| said.contains(word) && !said.contains("savepoint"))
            {
                return failed(said);
            }
        }
        steps.store(0, Ordering::Relaxed);
        let after = oracle.look();
        let undone = statement.starts_with("rollback")
            || answer.is_err() && in_transaction && app.is_autocommit();
        if let Err(what) = oracle.check(&before, &after, undone) {
            return failed(what);
        }
        before = after;
    }
    Ok(())
}

fn seconds() -> u64 {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match number("CHANGEFEED_FUZZ_SECONDS") {
        Some(seconds) => seconds,
        None if number("CHANGEFEED_SOAK").is_some_and(|v| v > 0) => 300,
        None => 0,
    }
}

/// The cases that always run.
const ALWAYS: u64 = 12;

#[tokio::test]
async fn whatever_the_schema_the_table_is_what_was_told() {
    if let Ok(seed) = std::env::var("CHANGEFEED_FUZZ_SEED") {
        run(seed.parse().unwrap())
            .await
            .unwrap_or_else(|e| panic!("{e}"));
        return;
    }
    let from: u64 = std::env::var("CHANGEFEED_FUZZ_FROM")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut seed = from;
    while seed < from + ALWAYS || Instant::now() < until {
        run(seed).await.unwrap_or_else(|e| panic!("{e}"));
        seed += 1;
    }
    println!("{} cases from seed {from}", seed - from);
}
