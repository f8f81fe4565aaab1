//! The server's own change tracking, from the writer to the function.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::Result;
use changefeed_core::RowOperation::{Delete, Insert, Update};
use changefeed_core::{RowOperation, Store, TableName, Watch, WatchSpec};

use crate::cases::{ensure, take_all};
use crate::place::Place;

/// How long instances may take to notice.
const PATIENCE: Duration = Duration::from_secs(60);

/// Inserts, updates and deletes are handed over; a TRUNCATE with nothing pending makes the table be read anew.
pub(crate) async fn case(place: &dyn Place, store: &Arc<dyn Store>) -> Result<()> {
    let session = place.session().await?;
    let name = place.name();
    session
        .run(&format!(
            "alter database {name} set change_tracking = on (change_retention = 2 days, auto_cleanup = on)"
        ))
        .await?;
    session
        .run(
            "create table tracked (id integer primary key, note nvarchar(100)); \
              alter table tracked enable change_tracking",
        )
        .await?;
    let spec = WatchSpec::new(
        "certify-tracked".parse()?,
        TableName::unqualified("tracked"),
    );
    let watch = store.open_watch(&spec).await?;
    let expect = async |sql: &str, expected: &[(RowOperation, i64)]| {
        session.run(sql).await?;
        check(store, &watch, sql, expected).await
    };
    expect(
        "insert into tracked values (1, N'a'), (2, N'a')",
        &[(Insert, 1), (Insert, 2)],
    )
    .await?;
    expect(
        "update tracked set note = N'b' where id = 1",
        &[(Update, 1)],
    )
    .await?;
    expect("delete from tracked where id = 2", &[(Delete, 2)]).await?;
    // A transaction that commits late is not passed by.
    let late = place.session().await?;
    late.run("begin transaction; insert into tracked values (3, N'late')")
        .await?;
    expect("insert into tracked values (4, N'early')", &[(Insert, 4)]).await?;
    late.run("commit transaction").await?;
    expect("select 1", &[(Insert, 3)]).await?;
    session.run("truncate table tracked").await?;
    // Nothing is pending and nothing is there, so an instance notices it when it next looks whether all is as it was.
    let deadline = Instant::now() + PATIENCE;
    loop {
        take_all(store, &watch).await?;
        let findings = store.watch_findings().await?;
        if findings.iter().any(|f| f.message.contains("were missed")) {
            break;
        }
        let in_time = Instant::now() < deadline;
        ensure(in_time, || {
            "a TRUNCATE was not noticed within a minute".to_owned()
        })?;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    store.drop_watch(&watch).await
}

async fn check(
    store: &Arc<dyn Store>,
    watch: &Watch,
    after: &str,
    expected: &[(RowOperation, i64)],
) -> Result<()> {
    let mut found = take_all(store, watch).await?;
    found.sort_by_key(|(_, id)| *id);
    ensure(found == expected, || {
        format!("after \"{after}\" a function was handed {found:?}, not {expected:?}")
    })
}
