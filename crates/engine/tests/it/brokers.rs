//! Sinks that compare and append, on the real brokers.
#![allow(
    clippy::print_stderr,
    reason = "seeds of failed tests, and figures that are asked for"
)]

mod chaos;
mod nats;
mod objects;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod rates;
mod redis;
mod servers;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use changefeed_core::{Cursor, ShardId, Sink, SubscriptionDefinition};
use changefeed_engine::sinks::destination::{Appended, Destination, Held, Lane, Mark, Message};
use changefeed_engine::sinks::{PushOptions, destination};

/// How long a state may take to come true on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// A sink by its address, as a subscription opens it.
async fn open(address: &str) -> Arc<dyn Destination> {
    let sink: Sink = address.parse().unwrap();
    let (name, feed) = ("to-broker".parse().unwrap(), "orders".parse().unwrap());
    let definition = SubscriptionDefinition::new(name, feed, sink.clone());
    definition.validate().unwrap();
    let options = PushOptions {
        allow_files: vec![std::env::temp_dir()],
        ..PushOptions::default()
    };
    destination(&sink, &definition, &options).await.unwrap()
}

/// Asks until there is an answer.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(began.elapsed() < DEADLINE, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn lane(shard: i16, epoch: u32) -> Lane {
    Lane {
        subscription: "to-broker".to_owned(),
        feed: "orders".parse().unwrap(),
        shard: ShardId(shard),
        epoch,
    }
}

fn body(number: i64) -> Bytes {
    Bytes::from(format!(
        r#"{{"cursor":"{number}","op":"insert","row":{{"number":{number},"text":"{:0>160}"}}}}"#,
        number * 7
    ))
}

fn message(lane: &Lane, number: i64) -> Message {
    Message {
        cursor: Cursor::Number(number),
        id: format!(
            "{}/{}/{}/{number}",
            lane.subscription, lane.shard, lane.epoch
        ),
        key: number.to_string(),
        subject: None,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: body(number),
    }
}

fn messages(lane: &Lane, numbers: impl IntoIterator<Item = i64>) -> Vec<Message> {
    numbers
        .into_iter()
        .map(|number| message(lane, number))
        .collect()
}

/// Gives messages ids that nobody has seen. What recognises ids must not hide that the condition failed.
fn rename(batch: &mut [Message]) {
    for message in batch {
        message.id = format!("{:x}", fastrand::u128(..));
    }
}

fn number(mark: Mark) -> i64 {
    mark.cursor.number().expect("a number")
}

/// Where a lane stands, as soon as the broker answers; zero is nothing.
async fn stands_at(sink: &dyn Destination, lane: &Lane) -> i64 {
    match until("the broker to answer", || async {
        sink.resume(lane).await.ok()
    })
    .await
    {
        Held::Nothing => 0,
        Held::Upto(mark) => number(mark),
        Held::CannotTell => panic!("this sink can tell"),
    }
}

/// Appends and expects that all of it is taken.
async fn put(sink: &dyn Destination, lane: &Lane, after: Held, batch: &[Message]) -> Held {
    match sink.append(lane, after, batch).await {
        Appended::All(held) => held,
        other => panic!("{other:?}"),
    }
}

/// Appends and resumes; other instances know what was appended.
async fn appends_and_resumes(first: &dyn Destination, second: &dyn Destination) {
    let lane = lane(0, 0);
    assert_eq!(first.resume(&lane).await, Ok(Held::Nothing));
    let held = put(first, &lane, Held::Nothing, &messages(&lane, 1..=5)).await;
    assert_eq!(second.resume(&lane).await, Ok(held));
    let held = put(second, &lane, held, &messages(&lane, 6..=1005)).await;
    let held = put(second, &lane, held, &messages(&lane, [1006])).await;
    // Gaps between cursors are usual: filters leave changes out.
    let held = put(second, &lane, held, &messages(&lane, [2000, 3000])).await;
    assert_eq!(first.resume(&lane).await, Ok(held));
    assert_eq!(stands_at(first, &lane).await, 3000);
    // Shards do not know each other.
    let other = self::lane(1, 0);
    assert_eq!(first.resume(&other).await, Ok(Held::Nothing));
    put(first, &other, Held::Nothing, &messages(&other, 1..=3)).await;
    put(second, &lane, held, &messages(&lane, [3001])).await;
}

/// A pusher that was away and comes back writes nothing, whatever it believes.
async fn a_zombie_writes_nothing(owner: &dyn Destination, zombie: &dyn Destination) {
    let lane = lane(0, 0);
    assert_eq!(zombie.resume(&lane).await, Ok(Held::Nothing));
    let held = put(owner, &lane, Held::Nothing, &messages(&lane, 1..=5)).await;
    let refused = zombie
        .append(&lane, Held::Nothing, &messages(&lane, 1..=700))
        .await;
    assert!(matches!(refused, Appended::Conflict), "{refused:?}");
    let old = zombie.resume(&lane).await.unwrap();
    put(owner, &lane, held, &messages(&lane, 6..=10)).await;
    for batch in [6..=6, 6..=10, 6..=900, 11..=20] {
        let mut batch = messages(&lane, batch);
        let refused = zombie.append(&lane, old, &batch).await;
        assert!(matches!(refused, Appended::Conflict), "{refused:?}");
        rename(&mut batch);
        let refused = zombie.append(&lane, old, &batch).await;
        assert!(matches!(refused, Appended::Conflict), "{refused:?}");
    }
    assert_eq!(stands_at(zombie, &lane).await, 10);
}

/// What stands before a message that is too large is stored, nothing behind it, and one can go on without it.
async fn a_message_that_is_too_large(sink: &dyn Destination, bytes: usize) {
    let lane = lane(0, 0);
    let mut batch = messages(&lane, 1..=6);
    batch[3].body = Bytes::from(vec![b'x'; bytes]);
    let Appended::Refused {
        index,
        held,
        reason,
    } = sink.append(&lane, Held::Nothing, &batch).await
    else {
        panic!("it was taken");
    };
    assert_eq!(index, 3, "{reason}");
    assert!(reason.contains("bytes"), "{reason}");
    assert_eq!(sink.resume(&lane).await, Ok(held));
    assert_eq!(stands_at(sink, &lane).await, 3);
    let Appended::Refused {
        index, held: same, ..
    } = sink.append(&lane, held, &batch[3..]).await
    else {
        panic!("it was taken");
    };
    assert_eq!((index, same), (0, held));
    put(sink, &lane, held, &batch[4..]).await;
}

/// The numbers of what was read, each with the body that belongs to it.
fn numbers(read: &[(i64, Bytes)]) -> Vec<i64> {
    for (number, bytes) in read {
        assert_eq!(*bytes, body(*number), "the body of {number}");
    }
    read.iter().map(|(number, _)| *number).collect()
}
