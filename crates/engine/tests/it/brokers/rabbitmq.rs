//! RabbitMQ.

use bytes::Bytes;
use changefeed_engine::sinks::destination::{Appended, Held};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use super::chaos::{Chaos, judge_at_least_once, rounds};
use super::servers::{self, Server};
use super::{lane, messages, numbers, open, put, until};

fn url(server: &Server, rest: &str) -> String {
    format!("amqp://guest:guest@127.0.0.1:{}/?{rest}", server.port)
}

/// The bare client.
async fn channel(server: &Server) -> Channel {
    let uri = format!("amqp://127.0.0.1:{}/%2f", server.port);
    let connection = until("the server", || async {
        Connection::connect(&uri, ConnectionProperties::default())
            .await
            .ok()
    })
    .await;
    connection.create_channel().await.unwrap()
}

/// Takes what is in a queue; of a stream, from its beginning, and as many as are known to be there: it does not count them.
async fn take(server: &Server, queue: &str, least: usize) -> Vec<Delivery> {
    let channel = channel(server).await;
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let there = channel.queue_declare(queue.into(), passive, FieldTable::default());
    let count = there.await.unwrap().message_count();
    channel
        .basic_qos(1000, BasicQosOptions::default())
        .await
        .unwrap();
    let mut arguments = FieldTable::default();
    if queue.starts_with("stream") {
        arguments.insert(
            "x-stream-offset".into(),
            AMQPValue::LongString("first".into()),
        );
    }
    let consume = channel.basic_consume(
        queue.into(),
        "reader".into(),
        BasicConsumeOptions::default(),
        arguments,
    );
    let mut consumer = consume.await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < least.max(count as usize) {
        let delivery = consumer.next().await.unwrap().unwrap();
        delivery.ack(BasicAckOptions::default()).await.unwrap();
        taken.push(delivery);
    }
    taken
}

fn read(taken: &[Delivery]) -> Vec<(i64, Bytes)> {
    let message = |delivery: &Delivery| {
        let body = Bytes::copy_from_slice(&delivery.data);
        let value: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        (value["row"]["number"].as_i64().expect("a number"), body)
    };
    taken.iter().map(message).collect()
}

/// What a quorum queue, a classic one and a stream have in common. All in one test: the server needs seconds to start.
#[tokio::test]
async fn messages_arrive_in_order_with_their_ids() {
    let Some((server, _names)) = servers::rabbitmq() else {
        return;
    };
    for kind in ["quorum", "classic", "stream"] {
        let name = format!("{kind}-orders-{{shard}}");
        let sink = open(&url(&server, &format!("queue={name}&type={kind}"))).await;
        let lane = lane(3, 1);
        let held = until("the first batch", || async {
            let sent = sink
                .append(&lane, Held::CannotTell, &messages(&lane, 1..=1500))
                .await;
            matches!(sent, Appended::All(_)).then_some(Held::CannotTell)
        })
        .await;
        // Another instance finds the queue that is there.
        let second = open(&url(&server, &format!("queue={name}"))).await;
        put(&*second, &lane, held, &messages(&lane, 1501..=1600)).await;
        let taken = take(&server, &format!("{kind}-orders-3"), 1600).await;
        assert_eq!(
            numbers(&read(&taken)),
            (1..=1600).collect::<Vec<_>>(),
            "{kind}"
        );
        let last = &taken.last().unwrap().properties;
        let id = last.message_id().as_ref().unwrap().as_str();
        assert_eq!((id, *last.delivery_mode()), ("to-broker/3/1/1600", Some(2)));
        let headers = last.headers().as_ref().unwrap().inner();
        let cursor = &headers["changefeed-cursor"];
        assert_eq!(*cursor, AMQPValue::LongString("1600".into()));
    }
    an_exchange_routes(&server).await;
    what_is_too_large_is_refused(&server).await;
}

/// What no queue takes is not thrown away.
async fn an_exchange_routes(server: &Server) {
    let sink = open(&url(server, "exchange=shop")).await;
    let lane = lane(0, 0);
    let mut batch = messages(&lane, 1..=3);
    for message in &mut batch {
        message.subject = Some("shop.orders.insert".to_owned());
    }
    let missing = sink.append(&lane, Held::CannotTell, &batch).await;
    assert!(
        matches!(&missing, Appended::Unavailable(why) if why.contains("no exchange 'shop'")),
        "{missing:?}"
    );
    let bare = channel(server).await;
    let declared = bare.exchange_declare(
        "shop".into(),
        ExchangeKind::Topic,
        ExchangeDeclareOptions::default(),
        FieldTable::default(),
    );
    declared.await.unwrap();
    let unbound = sink.append(&lane, Held::CannotTell, &batch).await;
    assert!(
        matches!(&unbound, Appended::Unavailable(why) if why.contains("no queue for the routing key")),
        "{unbound:?}"
    );
    let lasting = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    bare.queue_declare("inserts".into(), lasting, FieldTable::default())
        .await
        .unwrap();
    let bound = bare.queue_bind(
        "inserts".into(),
        "shop".into(),
        "shop.*.insert".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.unwrap();
    put(&*sink, &lane, Held::CannotTell, &batch).await;
    assert_eq!(numbers(&read(&take(server, "inserts", 3).await)), [1, 2, 3]);
    // Without a template the routing key is FEED.SHARD, which is not bound.
    let plain = sink
        .append(&lane, Held::CannotTell, &messages(&lane, [4]))
        .await;
    assert!(
        matches!(&plain, Appended::Unavailable(why) if why.contains("'orders.0'")),
        "{plain:?}"
    );
}

/// What stands before it arrives, nothing behind it, and one can go on without it.
async fn what_is_too_large_is_refused(server: &Server) {
    let sink = open(&url(server, "queue=large")).await;
    let lane = lane(0, 0);
    let mut batch = messages(&lane, 1..=6);
    batch[3].body = Bytes::from(vec![b'x'; 1_500_000]);
    let refused = sink.append(&lane, Held::CannotTell, &batch).await;
    assert!(
        matches!(&refused, Appended::Refused { index: 3, reason, .. } if reason.contains("larger")),
        "{refused:?}"
    );
    put(&*sink, &lane, Held::CannotTell, &batch[4..]).await;
    batch[4].subject = Some("x".repeat(300));
    let refused = sink.append(&lane, Held::CannotTell, &batch[4..]).await;
    assert!(
        matches!(&refused, Appended::Refused { index: 0, .. }),
        "{refused:?}"
    );
    let mut arrived = numbers(&read(&take(server, "large", 5).await));
    // Before it was known which one is meant, those in front of it arrived already.
    arrived.dedup();
    let again: Vec<i64> = arrived.iter().copied().filter(|n| *n > 3).collect();
    assert_eq!(again, [5, 6], "{arrived:?}");
}

#[tokio::test]
async fn nothing_is_lost_in_rabbitmq() {
    let Some((server, names)) = servers::rabbitmq() else {
        return;
    };
    let url = url(&server, "queue=orders-{shard}");
    let mut servers = [server];
    let goal = Chaos::new(url, &mut servers).await.run(rounds(3)).await;
    judge_at_least_once(&read(&take(&servers[0], "orders-0", 0).await), goal);
    drop(names);
}
