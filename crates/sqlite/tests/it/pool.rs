//! Many more callers than connections: no call of ours asks for a second connection while it has one.

use std::time::Duration;

use changefeed_core::{
    After, FeedStore, SchemaStore, ShardId, TableName, TriggerStore, WatchSpec, WatchStore,
};

use crate::event_support::everything;
use crate::support::Lab;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_connections_never_wait_for_each_other() {
    let lab = Lab::new().await;
    lab.shell("create table t (id integer primary key, u unique); insert into t values (1, 1);")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    lab.trigger(&everything("t")).await;
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let (store, feed) = (lab.store.clone(), feed.clone());
            tokio::spawn(async move {
                let name = format!("w{}", n % 4).parse().unwrap();
                let mut spec = WatchSpec::new(name, TableName::unqualified("t"));
                spec.from = changefeed_core::WatchFrom::Beginning;
                let watch = store.open_watch(&spec).await?;
                store.watch_status(&watch, 10).await?;
                store.refresh_triggers().await?;
                store.capture_findings().await?;
                store.read(&feed, ShardId(0), After::First, 10).await?;
                store.schema().await.map(|_| ())
            })
        })
        .collect();
    let all = async {
        for call in calls {
            call.await.unwrap().unwrap();
        }
    };
    // A ceiling for a slow machine: a deadlock would last for ever.
    tokio::time::timeout(Duration::from_secs(120), all)
        .await
        .unwrap();
}
