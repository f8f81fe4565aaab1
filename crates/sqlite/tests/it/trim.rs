//! Retention.

use std::time::Duration;

use changefeed_core::{
    After, ConsumerStore, Cursor, DEFAULT_START, Feed, FeedStore, Kind, ShardId,
};

use crate::support::Lab;

async fn published(lab: &Lab, count: i64) -> Feed {
    let feed = lab.feed(37, 1).await;
    let app = lab.app();
    for id in 1..=count {
        let sql = "insert into changefeed_change (feed_id, shard, change_id) values (37, 0, ?1)";
        app.execute(sql, [id]).unwrap();
    }
    feed
}

/// Lets every mark be as old as if it had been made that long ago.
fn age_by(lab: &Lab, millis: i64) {
    lab.app()
        .execute(
            "update changefeed_progress set marked_at = marked_at - ?1",
            [millis],
        )
        .unwrap();
}

#[tokio::test]
async fn a_trimmed_cursor_has_expired_and_first_begins_after_it() {
    let lab = Lab::new().await;
    let feed = published(&lab, 10).await;
    let trim = async |batch| {
        lab.store
            .trim(&feed, Duration::ZERO.into(), batch)
            .await
            .unwrap()
            .removed
    };
    assert_eq!(trim(4).await, 4);
    let error = lab
        .store
        .read(
            &feed,
            ShardId(0),
            Cursor::Number(DEFAULT_START + 3).into(),
            10,
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::CursorExpired);
    assert_eq!(
        error.message(),
        "cursor 2000000000000003 of feed 'feed-37' shard 0 has expired: changes up to \
         2000000000000004 were trimmed"
    );
    let edge = Cursor::Number(DEFAULT_START + 4).into();
    assert_eq!(lab.page(&feed, 0, edge, 10).await.changes.len(), 6);
    assert_eq!(lab.page(&feed, 0, After::First, 10).await.changes.len(), 6);
    assert_eq!(trim(100).await, 6);
    assert_eq!(trim(100).await, 0);
    let page = lab.page(&feed, 0, After::First, 10).await;
    assert_eq!(page.next, Cursor::Number(DEFAULT_START + 10));
}

#[tokio::test]
async fn only_what_is_old_enough_goes() {
    let lab = Lab::new().await;
    let feed = published(&lab, 10).await;
    let hour = Duration::from_secs(3600);
    assert_eq!(
        lab.store
            .trim(&feed, hour.into(), 100)
            .await
            .unwrap()
            .removed,
        0
    );
    age_by(&lab, 3_500_000);
    assert_eq!(
        lab.store
            .trim(&feed, hour.into(), 100)
            .await
            .unwrap()
            .removed,
        0
    );
    age_by(&lab, 102_000);
    // These get a mark of their own.
    lab.app()
        .execute_batch(
            "insert into changefeed_change (feed_id, shard, change_id) values (37, 0, 11), (37, 0, 12)",
        )
        .unwrap();
    assert_eq!(
        lab.store
            .trim(&feed, hour.into(), 100)
            .await
            .unwrap()
            .removed,
        10
    );
    assert_eq!(lab.numbers(&feed, 0).await.len(), 2);
    age_by(&lab, 3_602_000);
    assert_eq!(
        lab.store
            .trim(&feed, hour.into(), 100)
            .await
            .unwrap()
            .removed,
        2
    );
}

#[tokio::test]
async fn data_put_in_by_hand_is_as_old_as_its_insert() {
    let lab = Lab::new().await;
    let feed = published(&lab, 1).await;
    age_by(&lab, 7_200_000);
    lab.app()
        .execute_batch(
            "insert into changefeed_change values (37, 0, 90, 9), (37, 0, 50, 5), (37, 0, 60, 6)",
        )
        .unwrap();
    let hour = Duration::from_secs(3600);
    assert_eq!(
        lab.store
            .trim(&feed, hour.into(), 100)
            .await
            .unwrap()
            .removed,
        0
    );
    age_by(&lab, 3_602_000);
    assert_eq!(
        lab.store
            .trim(&feed, hour.into(), 100)
            .await
            .unwrap()
            .removed,
        4
    );
}

#[tokio::test]
async fn a_consumer_that_has_not_read_holds_changes_back() {
    let lab = Lab::new().await;
    let feed = published(&lab, 10).await;
    let name = "slow".parse().unwrap();
    let cursor = Cursor::Number(DEFAULT_START + 3);
    lab.store
        .store_cursor(&name, &feed, ShardId(0), None, cursor)
        .await
        .unwrap();
    let trimmed = lab
        .store
        .trim(&feed, Duration::ZERO.into(), 100)
        .await
        .unwrap();
    assert_eq!(trimmed.removed, 3);
    assert_eq!(trimmed.held_back_by, ["slow (shard 0)"]);
    lab.store.drop_consumer(&name, &feed).await.unwrap();
    let trimmed = lab
        .store
        .trim(&feed, Duration::ZERO.into(), 100)
        .await
        .unwrap();
    assert_eq!((trimmed.removed, trimmed.held_back_by.len()), (7, 0));
}

/// A copy of the file gives the same numbers to other changes; only the incarnation tells them apart.
#[tokio::test]
async fn a_copy_of_the_file_is_told_from_the_original_after_a_recovery() {
    let lab = Lab::new().await;
    let feed = published(&lab, 3).await;
    let copy = lab.path().with_file_name("copy.db");
    lab.shell(&format!(".backup '{}'", copy.display())).unwrap();
    let original = lab.page(&feed, 0, After::First, 10).await;
    let copy = changefeed_sqlite::SqliteStore::open(copy).await.unwrap();
    let same = copy
        .read(&feed, ShardId(0), After::First, 10)
        .await
        .unwrap();
    assert_eq!(same.incarnation, original.incarnation);
    let recovered = copy.recover().await.unwrap();
    let told = recovered.check(Some(original.incarnation)).unwrap_err();
    assert_eq!(told.kind(), Kind::Recovered);
    let read = copy.read(&feed, ShardId(0), After::Last, 10).await.unwrap();
    assert_eq!(read.incarnation, recovered);
    // The original goes on as it was.
    let page = lab.page(&feed, 0, After::Last, 10).await;
    assert_eq!(page.incarnation, original.incarnation);
}
