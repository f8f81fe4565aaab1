//! `changefeed serve`

pub(crate) mod files;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use changefeed::{
    CancellationToken, Changefeed, Error, Kind, Remedy, Result, SweepGroup, require_current,
};
use changefeed_server::{
    Certificate, Health, Introduction, Metered, Meters, Options, Server, announce,
};
use tokio::task::JoinHandle;

use crate::args::{Http, Role, Serve};
use crate::commands::deliver::deliver;
use crate::commands::watch;
use crate::connect;
use crate::output::Out;
use crate::{demo, signals};

/// How soon a sweep group that was added while we run gets its sweeper.
const LOOK_FOR_GROUPS: Duration = Duration::from_secs(2);
/// What may be left to do when the last delivery is over.
const LAST_WORDS: Duration = Duration::from_secs(15);

pub(crate) async fn run(
    database: &str,
    database_given: bool,
    args: Serve,
    out: &mut Out,
) -> Result<()> {
    let shutdown = signals::shutdown()?;
    if args.demo {
        let database = database_given.then_some(database);
        return demo::run(database, args, out, shutdown).await;
    }
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let deadline = args.deliver.grace + LAST_WORDS;
    let instance = Instance::prepare(&db, &args, &shutdown).await?;
    match instance.url() {
        Some(url) => out.say(format!("serving at {url}; Ctrl-C stops"))?,
        None => out.say("serving; Ctrl-C stops")?,
    }
    let serving = instance.run(&args);
    tokio::select! {
        ended = serving => ended,
        () = too_late(&shutdown, deadline) => Err(Error::new(
            Kind::Unavailable,
            format!("it did not stop within {}", humantime::format_duration(deadline)),
        )),
    }?;
    out.say("stopped")
}

async fn too_late(shutdown: &CancellationToken, deadline: Duration) {
    shutdown.cancelled().await;
    tokio::time::sleep(deadline).await;
}

/// An instance that listens already, if it is to answer requests, but does nothing yet.
pub(crate) struct Instance {
    /// Not counted.
    db: Changefeed,
    meters: Arc<Meters>,
    owner: String,
    roles: Vec<Role>,
    health: Health,
    server: Option<Server>,
    hangups: signals::Hangups,
    /// Whichever part ends first with an error ends the others.
    stop: CancellationToken,
}

impl Instance {
    /// Binds the address.
    pub(crate) async fn prepare(
        db: &Changefeed,
        args: &Serve,
        shutdown: &CancellationToken,
    ) -> Result<Instance> {
        let (owner, roles, health) = (instance(), args.roles(), Health::default());
        let (stop, meters) = (shutdown.child_token(), Meters::new());
        let server = if roles.contains(&Role::Http) {
            let options = Options {
                allowed_variables: args.deliver.allowed()?,
                max_connections: files::room_for_connections(args.deliver.concurrency as usize),
                ..options(&args.http, &owner)
            };
            let (db, health, meters) = (db.clone(), health.clone(), meters.clone());
            let server = Server::bind(db, options, health, meters, stop.clone());
            Some(server.await?)
        } else {
            None
        };
        Ok(Instance {
            db: db.clone(),
            meters,
            owner,
            roles,
            health,
            server,
            hangups: signals::Hangups::new()?,
            stop,
        })
    }

    /// How a browser reaches it, if it can.
    pub(crate) fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }

    /// Does everything that its roles say, until told to stop.
    pub(crate) async fn run(self, args: &Serve) -> Result<()> {
        let (owner, stop) = (&self.owner, &self.stop);
        // Every call of the database is counted, and those of loops are watched.
        let counted = |role: Role| {
            let (store, pulse) = (self.db.store().clone(), self.health.pulse(role.as_str()));
            Changefeed::new(Metered::in_loop(store, self.meters.clone(), pulse))
        };
        let (sweeping, delivering, watching) = (
            counted(Role::Sweep),
            counted(Role::Deliver),
            counted(Role::Watch),
        );
        let db = Changefeed::new(Metered::around(
            self.db.store().clone(),
            self.meters.clone(),
        ));
        let who = Introduction {
            name: owner.clone(),
            roles: self.roles.iter().map(|r| r.as_str().to_owned()).collect(),
            address: self.server.as_ref().map(|s| s.address().to_string()),
        };
        let run = |role: Role| Part {
            role,
            wanted: self.roles.contains(&role),
            health: self.health.clone(),
            stop: stop.clone(),
        };
        let certificate = self.server.as_ref().and_then(Server::certificate);
        let (swept, delivered, watched, (), (), (), ()) = tokio::join!(
            run(Role::Sweep).of(sweep_all(&sweeping, owner, stop.clone())),
            run(Role::Deliver).of(async {
                let totals = deliver(&delivering, &args.deliver, owner, stop.clone()).await;
                totals.map(drop)
            }),
            run(Role::Watch).of(watch::serve(&watching, args, owner, stop.clone())),
            async {
                if let Some(server) = self.server {
                    server.run().await;
                }
            },
            announce(db, who, self.meters.clone(), stop.clone()),
            self.health.tell(stop.clone()),
            self.hangups
                .each(stop.clone(), || reload(certificate.as_ref())),
        );
        swept.and(delivered).and(watched)
    }
}

/// SIGHUP: reads the certificate again. One that cannot be read must not end what works.
fn reload(certificate: Option<&Certificate>) {
    match certificate.map(Certificate::reload) {
        None => tracing::info!("SIGHUP: there is no certificate to read again"),
        Some(Ok(())) => tracing::info!("SIGHUP: the certificate was read again"),
        Some(Err(error)) => tracing::error!(
            error = %error, advice = error.advice(),
            "SIGHUP: the certificate stays what it was"
        ),
    }
}

/// A loop of this instance.
struct Part {
    role: Role,
    wanted: bool,
    health: Health,
    stop: CancellationToken,
}

impl Part {
    /// Runs it, if this instance does such things; when it ends, everything else ends too.
    async fn of(self, work: impl Future<Output = Result<()>>) -> Result<()> {
        if !self.wanted {
            return Ok(());
        }
        self.health.runs(self.role.as_str());
        let ended = work.await;
        let why = match &ended {
            Ok(()) => "it was stopped".to_owned(),
            Err(error) => error.to_string(),
        };
        self.health.ended(self.role.as_str(), why);
        self.stop.cancel();
        ended
    }
}

/// What was typed about HTTP.
fn options(http: &Http, owner: &str) -> Options {
    Options {
        tls: http.tls_cert.clone().zip(http.tls_key.clone()),
        allow_hosts: http.allow_host.clone(),
        cors_origins: http.cors_origin.clone(),
        max_body: http.max_body,
        max_requests: http.max_requests as usize,
        max_waiting: http.max_waiting as usize,
        request_timeout: http.request_timeout,
        keep_alive: http.keep_alive,
        ..Options::new(http.listen, owner)
    }
}

/// Who we are among the instances: unique to this process.
pub(crate) fn instance() -> String {
    let host = gethostname::gethostname();
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis());
    format!(
        "{}/{}/{since:x}",
        host.to_string_lossy(),
        std::process::id()
    )
}

/// Runs a sweeper for every group that has shards, until told to stop.
async fn sweep_all(db: &Changefeed, owner: &str, shutdown: CancellationToken) -> Result<()> {
    let mut sweepers: BTreeMap<SweepGroup, JoinHandle<Result<()>>> = BTreeMap::new();
    loop {
        if db.needs_sweeping() {
            match db.sweep_groups().await {
                Ok(groups) => {
                    for group in groups {
                        sweepers.entry(group).or_insert_with(|| {
                            let sweeper = db.sweeper(group, owner);
                            let stop = shutdown.clone();
                            tokio::spawn(async move { sweeper.run(|_| {}, stop).await.map(drop) })
                        });
                    }
                }
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(%error, "cannot look for sweep groups; trying again");
                }
                Err(error) => return Err(error),
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(LOOK_FOR_GROUPS) => {}
        }
        // A sweeper ends by itself only with an error that a person has to mend.
        let ended: Vec<SweepGroup> = sweepers
            .iter()
            .filter(|(_, s)| s.is_finished())
            .map(|(g, _)| *g)
            .collect();
        for group in ended {
            if let Some(sweeper) = sweepers.remove(&group) {
                joined(sweeper).await?;
            }
        }
    }
    for (_, sweeper) in sweepers {
        joined(sweeper).await?;
    }
    Ok(())
}

async fn joined(sweeper: JoinHandle<Result<()>>) -> Result<()> {
    sweeper.await.unwrap_or_else(|error| {
        Err(
            changefeed::Error::new(changefeed::Kind::Database, "a sweeper broke down")
                .caused_by(error),
        )
    })
}
