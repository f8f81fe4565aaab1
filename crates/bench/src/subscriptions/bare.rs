//! The bare client: pipelined, without any guarantee about order or repetition.

use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream::Config};
use changefeed::{Error, Kind, Result};

/// Messages on their way at the same time.
const WINDOW: usize = 2000;
/// How long a cluster may take until it makes streams.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a message of ours has: nearly as many bytes, without the headers.
const BODY: usize = 200;
const STREAM: &str = "changefeed_bench_bare";

/// A stream of its own on the same servers.
pub(super) struct Nats {
    context: jetstream::Context,
}

impl Nats {
    pub(super) async fn connect(servers: &str, replicas: usize) -> Result<Self> {
        let hosts = servers.trim_start_matches("nats://");
        let hosts: Vec<String> = hosts
            .split(',')
            .map(|host| format!("nats://{host}"))
            .collect();
        let client = async_nats::connect(hosts).await.map_err(away)?;
        let context = jetstream::new(client);
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec![format!("{STREAM}.>")],
            num_replicas: replicas,
            ..Config::default()
        };
        let began = Instant::now();
        // What a run that was killed has left.
        let _ = context.delete_stream(STREAM).await;
        let _ = context.delete_stream("changefeed_bench").await;
        while let Err(error) = context.create_stream(config.clone()).await {
            if began.elapsed() > PATIENCE {
                return Err(away(error));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Nats { context })
    }

    /// Messages per second, until all are acknowledged.
    pub(super) async fn push(&self, messages: usize) -> Result<f64> {
        let body = bytes::Bytes::from(vec![b'x'; BODY]);
        let subject = format!("{STREAM}.0");
        let began = Instant::now();
        let mut waiting = std::collections::VecDeque::with_capacity(WINDOW);
        for _ in 0..messages {
            if waiting.len() == WINDOW
                && let Some(oldest) = waiting.pop_front()
            {
                let acknowledged: jetstream::context::PublishAckFuture = oldest;
                acknowledged.await.map_err(away)?;
            }
            let sent = self.context.publish(subject.clone(), body.clone()).await;
            waiting.push_back(sent.map_err(away)?);
        }
        for acknowledged in waiting {
            acknowledged.await.map_err(away)?;
        }
        Ok(messages as f64 / began.elapsed().as_secs_f64())
    }

    pub(super) async fn clean_up(&self) {
        for stream in [STREAM, "changefeed_bench"] {
            let _ = self.context.delete_stream(stream).await;
        }
    }
}

fn away(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Unavailable, "NATS does not answer").caused_by(error)
}
