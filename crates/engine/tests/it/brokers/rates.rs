//! How much the guarantee costs: our sinks beside the bare clients on the same brokers, in one run.
//! `cargo test --release -p changefeed-engine --test it brokers::rates -- --ignored --nocapture`

use std::time::Instant;

use changefeed_engine::sinks::destination::{Destination, Held};
use changefeed_engine::sinks::nats::Nats;
use changefeed_engine::sinks::redis::Redis;

use super::{body, lane, messages, put, servers, until};

const MESSAGES: i64 = 100_000;
const BATCH: usize = 1000;

fn rate(what: &str, began: Instant) -> f64 {
    let rate = MESSAGES as f64 / began.elapsed().as_secs_f64();
    eprintln!("{what}: {rate:.0} messages/s");
    rate
}

async fn ours(what: &str, sink: &dyn Destination) -> f64 {
    let lane = lane(0, 0);
    let mut held = until("the broker", || async { sink.resume(&lane).await.ok() }).await;
    assert_eq!(held, Held::Nothing);
    let all = messages(&lane, 1..=MESSAGES);
    let began = Instant::now();
    for batch in all.chunks(BATCH) {
        held = put(sink, &lane, held, batch).await;
    }
    rate(what, began)
}

async fn bare_nats(context: &async_nats::jetstream::Context) -> f64 {
    let bodies: Vec<_> = (1..=MESSAGES).map(body).collect();
    let began = Instant::now();
    for batch in bodies.chunks(BATCH) {
        let mut acks = Vec::with_capacity(batch.len());
        for body in batch {
            acks.push(context.publish("shop.bare.0", body.clone()).await.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
    }
    rate("bare client, pipelined, no guarantee", began)
}

#[tokio::test]
#[ignore = "measures"]
async fn of_nats() {
    for replicas in [1, 3] {
        let servers = if replicas == 1 {
            vec![servers::nats("")]
        } else {
            servers::nats_cluster()
        };
        eprintln!("NATS, {replicas} replicas");
        let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
        let hosts: Vec<String> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let context = super::nats::context(&ports).await;
        let config = async_nats::jetstream::stream::Config {
            name: "bare".to_owned(),
            subjects: vec!["shop.bare.>".to_owned()],
            num_replicas: replicas,
            ..Default::default()
        };
        until("the bare stream", || async {
            context.create_stream(config.clone()).await.ok()
        })
        .await;
        let bare = bare_nats(&context).await;
        let url = format!("nats://{}/shop.orders?replicas={replicas}", hosts.join(","));
        let ours = ours("our sink", &Nats::connect(&url, None).unwrap()).await;
        eprintln!("ratio {:.2}", ours / bare);
    }
}

#[tokio::test]
#[ignore = "measures"]
async fn of_redis() {
    let server = servers::redis(&[]);
    eprintln!("Redis");
    let mut connection = super::redis::connection(server.port).await;
    let bodies: Vec<_> = (1..=MESSAGES).map(body).collect();
    let began = Instant::now();
    for batch in bodies.chunks(BATCH) {
        let mut pipeline = ::redis::pipe();
        for body in batch {
            pipeline
                .cmd("XADD")
                .arg("bare")
                .arg("*")
                .arg("body")
                .arg(&body[..])
                .ignore();
        }
        let () = pipeline.query_async(&mut connection).await.unwrap();
    }
    let bare = rate("bare client, pipelined, no guarantee", began);
    let url = format!("redis://127.0.0.1:{}/orders", server.port);
    let ours = ours("our sink", &Redis::connect(&url).unwrap()).await;
    eprintln!("ratio {:.2}", ours / bare);
}
