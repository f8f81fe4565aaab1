//! Subscriptions: how fast changes reach a broker, and how soon one of them does, against the bare client on the same broker.

mod bare;
mod brokers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed::{
    After, CancellationToken, ConsumerName, Cursor, Error, FeedHandle, Kind, Lane, Leases, Result,
    ShardId, Sink, Sinks, Subscriber, SubscriptionDefinition,
};
use changefeed_engine::sinks::destination::{self as sink, Appended, Destination, Held, Message};
use changefeed_engine::sinks::{PushOptions, destination};

use crate::feeds::Server;
use crate::latency::{self, Log};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;
use crate::sweeping::Sweeping;
pub use brokers::Brokers;
use brokers::{Broker, Running};

/// Changes that are committed each second while their way is timed.
const RATE: u32 = 200;
/// Who writes them.
const WRITERS: usize = 4;
/// Messages in a batch.
const BATCH: usize = 1000;
/// How long the last change may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn measure(
    server: &impl Server,
    brokers: &Brokers,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("starting the brokers");
    let running = Running::start(brokers, findings).await?;
    for broker in &running.brokers {
        let feed = server.new_feed(1).await?;
        findings.doing(&format!("writing {} changes", scale.pushed));
        server.add(&feed, scale.pushed).await?;
        server.scratch().drain().await?;
        server.tidy().await?;
        throughput(server, &feed, broker, scale, findings).await?;
        delay(server, broker, scale, findings).await?;
        broker.clean_up().await;
    }
    running.stop();
    Ok(())
}

/// All changes of a feed, again and again, in turns with the bare client.
async fn throughput(
    server: &impl Server,
    feed: &FeedHandle,
    broker: &Broker,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let pushing = Pushing::create(server, feed, broker).await?;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(&format!(
            "{}: round {} of {}",
            broker.name,
            round.max(1),
            scale.rounds
        ));
        let without = match broker
            .bare(usize::try_from(scale.pushed).unwrap_or(0))
            .await?
        {
            Some(rate) => rate,
            None => read_alone(feed, scale).await?,
        };
        let with = pushing.all(feed, scale.pushed).await?;
        // The first round only warms both up.
        if round > 0 {
            ours.add(with);
            bare.add(without);
        }
    }
    let least = Some(Budget::at_least(broker.least));
    findings.add(Measure::compared(
        broker.rate,
        "messages/s",
        &ours,
        &bare,
        least,
    ));
    pushing.remove().await
}

/// Pages of the same length, which go nowhere.
async fn read_alone(feed: &FeedHandle, scale: &Scale) -> Result<f64> {
    let began = Instant::now();
    let (mut after, mut read) = (After::First, 0);
    while read < scale.pushed {
        let page = feed.read(ShardId(0), after, BATCH).await?;
        after = After::Cursor(page.next);
        read += i64::try_from(page.changes.len()).unwrap_or(0);
    }
    Ok(read as f64 / began.elapsed().as_secs_f64())
}

/// From the commit until the broker has acknowledged.
async fn delay(
    server: &impl Server,
    broker: &Broker,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing(&format!("{}: {RATE} changes/s are followed", broker.name));
    let feed = server.new_feed(1).await?;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        writers.push(server.trickle(&feed).await?);
    }
    let changes = scale.follow.as_secs_f64() * f64::from(RATE);
    let log = Arc::new(Log::new(server.next_change_id().await?, changes as usize));
    let pushing = Pushing::create(server, &feed, broker).await?;
    let sweeping = Sweeping::start(&server.scratch().db, &feed);
    let (stop, task) = pushing.start(Some(log.clone())).await?;
    let could = latency::publish(writers, &log, RATE).await?;
    let began = Instant::now();
    while !log.is_complete() && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let complete = log.is_complete();
    stop.cancel();
    let _ = task.await;
    sweeping.stop().await;
    pushing.remove().await?;
    latency::judge_rate(could, RATE, findings);
    if !complete {
        return Err(Error::new(
            Kind::Unavailable,
            "not all changes reached the broker",
        ));
    }
    let delays = log.latencies();
    let figure = |name, part, most| {
        Measure::alone(
            name,
            "ms",
            delays.quantile(part),
            Some(Budget::at_most(most)),
        )
    };
    findings.add(figure(broker.half, 0.5, 5.0));
    findings.add(figure(broker.most, 0.99, 15.0));
    Ok(())
}

/// A subscription of the measures' own, which no instance runs.
struct Pushing<'a, S> {
    server: &'a S,
    definition: SubscriptionDefinition,
    feed: FeedHandle,
    sink: Arc<dyn Destination>,
}

impl<'a, S: Server> Pushing<'a, S> {
    async fn create(server: &'a S, feed: &FeedHandle, broker: &Broker) -> Result<Self> {
        let name: ConsumerName = "changefeed-bench".parse()?;
        let store = server.scratch().db.store();
        // A run that was killed may have left it.
        let _ = store.drop_subscription(&name).await;
        // Instances leave such alone: they belong to the program that runs them.
        let definition = SubscriptionDefinition {
            batch: BATCH,
            ..SubscriptionDefinition::new(name, feed.definition().name.clone(), Sink::InProcess)
        };
        let starts = feed.starts(After::First).await?;
        let starts: Vec<(ShardId, Cursor)> = starts
            .into_iter()
            .filter_map(|(shard, start)| Some((shard, start?)))
            .collect();
        store
            .create_subscription(&definition, feed.definition(), &starts, false)
            .await?;
        let sink: Sink = broker.url.parse()?;
        let sink = destination(&sink, &definition, &PushOptions::default()).await?;
        Ok(Pushing {
            server,
            definition,
            feed: feed.clone(),
            sink,
        })
    }

    fn lane(&self) -> Lane {
        Lane {
            name: self.definition.name.clone(),
            feed: self.feed.definition().id,
            shard: ShardId(0),
        }
    }

    /// Begins a new epoch and pushes.
    async fn start(
        &self,
        log: Option<Arc<Log>>,
    ) -> Result<(CancellationToken, tokio::task::JoinHandle<Result<()>>)> {
        let store = self.server.scratch().db.store().clone();
        store.restart_lane(&self.lane(), None).await?;
        let main: Arc<dyn Destination> = match log {
            Some(log) => Arc::new(Watched {
                sink: self.sink.clone(),
                log,
            }),
            None => self.sink.clone(),
        };
        let sinks = Sinks {
            main,
            refused: None,
        };
        let leases = Leases::start(store.clone(), "changefeed bench");
        let feed = self.feed.definition().clone();
        let definition = self.definition.clone();
        let subscriber = Subscriber::new(store, definition, feed, ShardId(0), leases, sinks);
        let stop = CancellationToken::new();
        let task = tokio::spawn(subscriber.run(stop.clone()));
        Ok((stop, task))
    }

    /// Pushes everything; messages per second.
    async fn all(&self, feed: &FeedHandle, changes: i64) -> Result<f64> {
        let began = Instant::now();
        let (stop, task) = self.start(None).await?;
        let store = self.server.scratch().db.store();
        let last = changefeed::DEFAULT_START + changes;
        loop {
            let at = store
                .consumer_cursor(&self.definition.name, feed.definition(), ShardId(0))
                .await?;
            if at.is_some_and(|at| at.number() >= Some(last)) {
                break;
            }
            if began.elapsed() > PATIENCE * 5 || task.is_finished() {
                stop.cancel();
                return Err(Error::new(Kind::Unavailable, "the broker took too long"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let rate = changes as f64 / began.elapsed().as_secs_f64();
        stop.cancel();
        let _ = task.await;
        Ok(rate)
    }

    async fn remove(self) -> Result<()> {
        let store = self.server.scratch().db.store();
        store.drop_subscription(&self.definition.name).await
    }
}

/// Notes when messages were acknowledged.
#[derive(Debug)]
struct Watched {
    sink: Arc<dyn Destination>,
    log: Arc<Log>,
}

#[async_trait]
impl Destination for Watched {
    async fn resume(&self, lane: &sink::Lane) -> Result<Held, String> {
        self.sink.resume(lane).await
    }

    async fn append(&self, lane: &sink::Lane, after: Held, batch: &[Message]) -> Appended {
        let appended = self.sink.append(lane, after, batch).await;
        if let Appended::All(_) = &appended {
            for message in batch {
                self.log.saw(change_id(&message.body).unwrap_or_default());
            }
        }
        appended
    }

    fn most(&self) -> usize {
        self.sink.most()
    }
}

fn change_id(body: &[u8]) -> Option<i64> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    body.get("change_id")?.as_str()?.parse().ok()
}
