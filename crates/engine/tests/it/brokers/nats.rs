//! NATS JetStream.

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::GetStreamByNameErrorKind;
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use changefeed_engine::sinks::destination::{Appended, Destination, Held};
use changefeed_engine::sinks::nats::{CURSOR, Nats};
use futures_util::StreamExt;

use super::servers::{self, Server};
use super::{lane, message, messages, numbers, put, stands_at, until};

fn sink(server: &Server) -> Nats {
    Nats::connect(&url(server), None).unwrap()
}

fn url(server: &Server) -> String {
    format!("nats://127.0.0.1:{}/shop.orders", server.port)
}

/// The bare client, as soon as JetStream answers.
pub(super) async fn context(ports: &[u16]) -> Context {
    let servers: Vec<String> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let client = async_nats::connect(servers).await.unwrap();
    let context = jetstream::new(client);
    // Asked in a way that servers of 2.9 answer, too.
    until("JetStream", || async {
        match context.stream_by_subject("no.such.subject").await {
            Err(e) if e.kind() == GetStreamByNameErrorKind::NotFound => Some(()),
            _ => None,
        }
    })
    .await;
    context
}

/// Reads all messages of a subject with the bare client, in the order of the stream, up to the last one that the leader
/// of the stream knows of. A consumer may live on a replica that is still behind.
pub(super) async fn read(context: &Context, stream: &str, filter: &str) -> Vec<(i64, Bytes)> {
    let stream = until("the stream", || async {
        context.get_stream(stream).await.ok()
    })
    .await;
    let last = until("the last message", || async {
        stream.get_last_raw_message_by_subject(filter).await.ok()
    })
    .await
    .sequence;
    let config = pull::Config {
        filter_subject: filter.to_owned(),
        ack_policy: AckPolicy::None,
        ..Default::default()
    };
    let consumer = until("a consumer", || async {
        stream.create_consumer(config.clone()).await.ok()
    })
    .await;
    let began = std::time::Instant::now();
    let (mut found, mut before) = (Vec::new(), 0);
    while before < last {
        assert!(
            began.elapsed() < super::DEADLINE,
            "read up to {before} of {last}"
        );
        let mut page = consumer
            .fetch()
            .max_messages(1000)
            .messages()
            .await
            .unwrap();
        while let Some(message) = page.next().await {
            let message = message.unwrap();
            let sequence = message.info().unwrap().stream_sequence;
            assert!(sequence > before, "{sequence} after {before}");
            before = sequence;
            let cursor = message.headers.as_ref().unwrap().get(CURSOR).unwrap();
            found.push((cursor.as_str().parse().unwrap(), message.payload.clone()));
        }
    }
    found
}

async fn stored(server: &Server, filter: &str) -> Vec<i64> {
    numbers(&read(&context(&[server.port]).await, "shop_orders", filter).await)
}

/// A stream without atomic batches, as older servers have it.
async fn make_plain(server: &Server, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config {
        name: "shop_orders".to_owned(),
        subjects: vec!["shop.>".to_owned()],
        ..Default::default()
    };
    change(&mut config);
    let stream = context(&[server.port])
        .await
        .create_stream(config)
        .await
        .unwrap();
    stream.cached_info().config.clone()
}

#[tokio::test]
async fn appends_and_resumes() {
    let server = servers::nats("");
    super::appends_and_resumes(&sink(&server), &sink(&server)).await;
    let expected: Vec<i64> = (1..=1006).chain([2000, 3000, 3001]).collect();
    assert_eq!(stored(&server, "shop.orders.0").await, expected);
    assert_eq!(stored(&server, "shop.orders.1").await, [1, 2, 3]);
    let context = context(&[server.port]).await;
    let made = context.get_stream("shop_orders").await.unwrap();
    assert!(made.cached_info().config.allow_atomic_publish);
    let last = made
        .get_last_raw_message_by_subject("shop.orders.1")
        .await
        .unwrap();
    let header = |name: &str| {
        last.headers
            .get(name)
            .map(|value| value.as_str().to_owned())
    };
    assert_eq!(header("Changefeed-Cursor").as_deref(), Some("3"));
    assert_eq!(header("Changefeed-Epoch").as_deref(), Some("0"));
    assert_eq!(header("Nats-Msg-Id").as_deref(), Some("to-broker/1/0/3"));
    assert_eq!(header("content-type").as_deref(), Some("application/json"));
}

#[tokio::test]
async fn a_zombie_writes_nothing() {
    let server = servers::nats("");
    super::a_zombie_writes_nothing(&sink(&server), &sink(&server)).await;
    assert_eq!(
        stored(&server, "shop.orders.0").await,
        (1..=10).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn streams_without_batches_get_one_message_at_a_time() {
    let server = servers::nats("");
    let before = make_plain(&server, |_| {}).await;
    let (owner, zombie) = (sink(&server), sink(&server));
    super::a_zombie_writes_nothing(&owner, &zombie).await;
    // Two shards that share the stream do not disturb each other.
    let (zero, one) = (lane(0, 0), lane(1, 0));
    let held = owner.resume(&zero).await.unwrap();
    let (first, second) = (messages(&zero, 11..=200), messages(&one, 1..=200));
    tokio::join!(
        put(&owner, &zero, held, &first),
        put(&zombie, &one, Held::Nothing, &second)
    );
    assert_eq!(
        stored(&server, "shop.orders.0").await,
        (1..=200).collect::<Vec<_>>()
    );
    assert_eq!(
        stored(&server, "shop.orders.1").await,
        (1..=200).collect::<Vec<_>>()
    );
    let context = context(&[server.port]).await;
    let after = context.get_stream("shop_orders").await.unwrap();
    assert_eq!(
        after.cached_info().config,
        before,
        "a stream that is there is not changed"
    );
}

#[tokio::test]
async fn a_message_that_is_too_large_for_the_server_is_refused() {
    let server = servers::nats("max_payload: 100KB\n");
    super::a_message_that_is_too_large(&sink(&server), 101 << 10).await;
    assert_eq!(stored(&server, "shop.orders.0").await, [1, 2, 3, 5, 6]);
}

#[tokio::test]
async fn a_message_that_is_too_large_for_the_stream_is_refused() {
    for atomic in [true, false] {
        let server = servers::nats("");
        make_plain(&server, |config| {
            config.max_message_size = 5000;
            config.allow_atomic_publish = atomic;
        })
        .await;
        super::a_message_that_is_too_large(&sink(&server), 5001).await;
        assert_eq!(stored(&server, "shop.orders.0").await, [1, 2, 3, 5, 6]);
    }
}

/// The sink has looked at the stream before its limit was lowered: the server decides, and which one it was is found out.
#[tokio::test]
async fn a_limit_that_came_later_names_the_message() {
    let server = servers::nats("");
    let mut config = make_plain(&server, |config| config.allow_atomic_publish = true).await;
    let (sink, lane) = (sink(&server), lane(0, 0));
    assert_eq!(sink.resume(&lane).await, Ok(Held::Nothing));
    config.max_message_size = 5000;
    context(&[server.port])
        .await
        .update_stream(config)
        .await
        .unwrap();
    let mut batch = messages(&lane, 1..=6);
    batch[3].body = Bytes::from(vec![b'x'; 6000]);
    let Appended::Refused { index, held, .. } = sink.append(&lane, Held::Nothing, &batch).await
    else {
        panic!("it was taken");
    };
    assert_eq!((index, sink.resume(&lane).await), (3, Ok(held)));
    assert_eq!(stored(&server, "shop.orders.0").await, [1, 2, 3]);
}

#[tokio::test]
async fn headers_that_cannot_be_sent_are_refused() {
    let server = servers::nats("");
    let (sink, lane) = (sink(&server), lane(0, 0));
    for (name, value) in [
        ("a", "line\nbreak"),
        ("a:b", "c"),
        ("nats-rollup", "all"),
        ("long", &*"x".repeat(70_000)),
    ] {
        let mut bad = message(&lane, 1);
        bad.headers.push((name.to_owned(), value.to_owned()));
        let refused = sink.append(&lane, Held::Nothing, &[bad]).await;
        assert!(
            matches!(refused, Appended::Refused { index: 0, .. }),
            "{name}: {refused:?}"
        );
    }
    assert_eq!(sink.resume(&lane).await, Ok(Held::Nothing));
}

#[tokio::test]
async fn a_crash_is_survived() {
    let mut server = servers::nats("");
    let (sink, lane) = (sink(&server), lane(0, 0));
    let held = put(&sink, &lane, Held::Nothing, &messages(&lane, 1..=500)).await;
    server.kill();
    let batch = messages(&lane, 501..=900);
    let away = sink.append(&lane, held, &batch).await;
    assert!(matches!(away, Appended::Unavailable(_)), "{away:?}");
    server.restart();
    // The client may send what it has kept for the server when that is back: that counts as one try.
    match stands_at(&sink, &lane).await {
        500 => {
            let tried = sink.append(&lane, held, &batch).await;
            assert!(
                matches!(tried, Appended::All(_) | Appended::Conflict),
                "{tried:?}"
            );
        }
        all => assert_eq!(all, 900),
    }
    assert_eq!(
        stored(&server, "shop.orders.0").await,
        (1..=900).collect::<Vec<_>>()
    );
}

/// A replay goes to the same subject, behind what is there, and ends the epoch before it.
#[tokio::test]
async fn a_replay_ends_the_epoch_before() {
    let server = servers::nats("");
    let (sink, zombie) = (sink(&server), sink(&server));
    let (old, new) = (lane(0, 0), lane(0, 1));
    let held = put(&zombie, &old, Held::Nothing, &messages(&old, 1..=5)).await;
    assert_eq!(sink.resume(&new).await, Ok(Held::Nothing));
    let replayed = put(&sink, &new, Held::Nothing, &messages(&new, 1..=3)).await;
    let refused = zombie.append(&old, held, &messages(&old, 6..=7)).await;
    assert!(matches!(refused, Appended::Conflict), "{refused:?}");
    let said = zombie.resume(&old).await.unwrap_err();
    assert!(said.contains("epoch 1"), "{said}");
    put(&sink, &new, replayed, &messages(&new, 4..=6)).await;
    assert_eq!(
        stored(&server, "shop.orders.0").await,
        [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]
    );
}

/// Messages that were removed come again when the stream has forgotten their ids.
#[tokio::test]
async fn removed_messages_come_again() {
    let server = servers::nats("");
    for atomic in [true, false] {
        make_plain(&server, |config| {
            config.allow_atomic_publish = atomic;
            config.duplicate_window = std::time::Duration::from_secs(2);
        })
        .await;
        let (sink, lane) = (sink(&server), lane(0, 0));
        let batch = messages(&lane, 1..=3);
        put(&sink, &lane, Held::Nothing, &batch).await;
        let context = context(&[server.port]).await;
        let stream = context.get_stream("shop_orders").await.unwrap();
        stream.purge().await.unwrap();
        assert_eq!(sink.resume(&lane).await, Ok(Held::Nothing));
        // One by one, the first may be forgotten while the others are still remembered.
        until("the ids to be forgotten", || async {
            let held = sink.resume(&lane).await.unwrap();
            let done = match held {
                Held::Upto(mark) => usize::try_from(super::number(mark)).unwrap(),
                _ => 0,
            };
            match sink.append(&lane, held, &batch[done..]).await {
                Appended::All(_) => Some(()),
                Appended::Unavailable(why) if why.contains("duplicate_window") => None,
                other => panic!("{other:?}"),
            }
        })
        .await;
        assert_eq!(stored(&server, "shop.orders.0").await, [1, 2, 3]);
        context.delete_stream("shop_orders").await.unwrap();
    }
}

/// With a template the condition covers all subjects of the shard.
#[tokio::test]
async fn templates_spread_a_shard_over_subjects() {
    let server = servers::nats("");
    for atomic in [true, false] {
        let (prefix, name) = if atomic {
            ("a.o", "a_o")
        } else {
            ("b.o", "b_o")
        };
        if !atomic {
            let config = Config {
                name: name.to_owned(),
                subjects: vec![format!("{prefix}.>")],
                ..Default::default()
            };
            context(&[server.port])
                .await
                .create_stream(config)
                .await
                .unwrap();
        }
        let url = format!("nats://127.0.0.1:{}/{prefix}", server.port);
        let template = format!("{prefix}.{{shard}}.{{op}}");
        let open = || Nats::connect(&url, Some(&template)).unwrap();
        let (owner, zombie) = (open(), open());
        let batch = |shard: i16, numbers: std::ops::RangeInclusive<i64>| {
            let mut batch = messages(&lane(shard, 0), numbers);
            for message in &mut batch {
                let op = if message.key.ends_with('3') {
                    "insert"
                } else {
                    "update"
                };
                message.subject = Some(format!("{prefix}.{shard}.{op}"));
            }
            batch
        };
        assert_eq!(zombie.resume(&lane(0, 0)).await, Ok(Held::Nothing));
        let held = put(&owner, &lane(0, 0), Held::Nothing, &batch(0, 1..=2)).await;
        put(&owner, &lane(1, 0), Held::Nothing, &batch(1, 1..=4)).await;
        // The zombie's first message has a subject that holds nothing yet.
        for (after, numbers) in [(Held::Nothing, 3..=3), (Held::Nothing, 3..=9)] {
            let refused = zombie.append(&lane(0, 0), after, &batch(0, numbers)).await;
            assert!(matches!(refused, Appended::Conflict), "{refused:?}");
        }
        put(&owner, &lane(0, 0), held, &batch(0, 3..=13)).await;
        let refused = zombie.append(&lane(0, 0), held, &batch(0, 3..=3)).await;
        assert!(matches!(refused, Appended::Conflict), "{refused:?}");
        let context = context(&[server.port]).await;
        let all = numbers(&read(&context, name, &format!("{prefix}.0.>")).await);
        assert_eq!(all, (1..=13).collect::<Vec<_>>());
        let inserted = numbers(&read(&context, name, &format!("{prefix}.*.insert")).await);
        assert_eq!(inserted, [3, 3, 13]);
        let mut bad = batch(0, 14..=15);
        bad[1].subject = Some(format!("{prefix}.0.white space"));
        let held = owner.resume(&lane(0, 0)).await.unwrap();
        let refused = owner.append(&lane(0, 0), held, &bad).await;
        assert!(
            matches!(&refused, Appended::Refused { index: 1, reason, .. } if reason.contains("white space"))
        );
        assert_eq!(stands_at(&owner, &lane(0, 0)).await, 14);
    }
}

#[tokio::test]
async fn subjects_without_a_shard_belong_to_one_shard() {
    let server = servers::nats("");
    let sink = Nats::connect(&url(&server), Some("shop.orders.{op}")).unwrap();
    let mut only = message(&lane(0, 0), 1);
    only.subject = Some("shop.orders.insert".to_owned());
    put(&sink, &lane(0, 0), Held::Nothing, &[only]).await;
    let said = sink.resume(&lane(1, 0)).await.unwrap_err();
    assert!(said.contains("{shard}"), "{said}");
}

#[tokio::test]
async fn streams_that_cannot_keep_the_promise_are_refused() {
    let server = servers::nats("");
    make_plain(&server, |config| {
        config.retention = RetentionPolicy::WorkQueue
    })
    .await;
    let said = sink(&server).resume(&lane(0, 0)).await.unwrap_err();
    assert!(said.contains("'limits'"), "{said}");
    let context = context(&[server.port]).await;
    context.delete_stream("shop_orders").await.unwrap();
    make_plain(&server, |config| {
        config.subjects = vec!["shop.orders.1".to_owned()]
    })
    .await;
    let named = Nats::connect(&format!("{}?stream=shop_orders", url(&server)), None).unwrap();
    let said = named.resume(&lane(0, 0)).await.unwrap_err();
    assert!(said.contains("does not take shop.orders.0"), "{said}");
}

#[tokio::test]
async fn messages_of_others_are_noticed() {
    let server = servers::nats("");
    make_plain(&server, |_| {}).await;
    let context = context(&[server.port]).await;
    let publish = context.publish_with_headers("shop.orders.0", HeaderMap::new(), "other".into());
    publish.await.unwrap().await.unwrap();
    let sink = sink(&server);
    let said = sink.resume(&lane(0, 0)).await.unwrap_err();
    assert!(said.contains("not written by changefeed"), "{said}");
    put(
        &sink,
        &lane(1, 0),
        Held::Nothing,
        &messages(&lane(1, 0), 1..=2),
    )
    .await;
    let mut other = lane(1, 0);
    other.subscription = "another".to_owned();
    let said = sink.resume(&other).await.unwrap_err();
    assert!(said.contains("'to-broker'"), "{said}");
}

#[tokio::test]
async fn a_server_that_asks_who_we_are() {
    let server = servers::nats("authorization { user: \"me\", password: \"p@ss:word\" }\n");
    let right = format!(
        "nats://me:p%40ss%3Aword@127.0.0.1:{}/shop.orders",
        server.port
    );
    let sink = Nats::connect(&right, None).unwrap();
    assert!(!format!("{sink:?}").contains("p@ss"), "{sink:?}");
    let lane = lane(0, 0);
    until("JetStream", || async { sink.resume(&lane).await.ok() }).await;
    put(&sink, &lane, Held::Nothing, &messages(&lane, 1..=2)).await;
    let wrong = format!("nats://me:wrong@127.0.0.1:{}/shop.orders", server.port);
    let said = Nats::connect(&wrong, None)
        .unwrap()
        .resume(&lane)
        .await
        .unwrap_err();
    assert!(
        said.contains("cannot be reached") && !said.contains("wrong@"),
        "{said}"
    );
}
