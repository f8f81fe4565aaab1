//! One instance: its loops, their meters, and how they end together.

mod delivering;
mod pushing;
mod sweeping;
mod warming;
mod watching;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use changefeed_core::Result;

use crate::observe::{Health, Introduction, Metered, Meters, announce};
use crate::sinks::webhook::WebhookOptions;
use crate::{CancellationToken, Changefeed, DispatchOptions};

pub use delivering::deliver;

/// What an instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Give numbers to committed changes.
    Sweep,
    /// Deliver events, and clean up after them.
    Deliver,
    /// Hand changed rows to functions.
    Watch,
    /// Push the changes of feeds to the sinks of subscriptions.
    Push,
    /// Answer requests.
    Http,
}

impl Role {
    /// Everything that an instance can do.
    pub const ALL: [Role; 5] = [
        Role::Sweep,
        Role::Deliver,
        Role::Watch,
        Role::Push,
        Role::Http,
    ];

    /// Its name in status, metrics and options.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Sweep => "sweep",
            Role::Deliver => "deliver",
            Role::Watch => "watch",
            Role::Push => "push",
            Role::Http => "http",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How an instance works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InstanceOptions {
    /// Its name among the instances; no other may have it.
    pub name: String,
    /// What it does.
    pub roles: Vec<Role>,
    /// How events are delivered.
    pub dispatch: DispatchOptions,
    /// How webhooks are called.
    pub webhooks: WebhookOptions,
    /// Whether it runs the commands of watches and subscriptions. Everybody who may define one can then run commands
    /// here.
    pub allow_exec: bool,
    /// The directories that subscriptions may write files to.
    pub allow_files: Vec<std::path::PathBuf>,
}

impl InstanceOptions {
    /// An instance of this name that does everything.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        InstanceOptions {
            roles: Role::ALL.to_vec(),
            dispatch: DispatchOptions::new(&name),
            webhooks: WebhookOptions::default(),
            allow_exec: false,
            allow_files: Vec::new(),
            name,
        }
    }
}

impl Default for InstanceOptions {
    fn default() -> Self {
        InstanceOptions::new(unique_name())
    }
}

/// A name that nobody else has: host and process for people, and chance, because containers share both
/// and a process may need several.
pub fn unique_name() -> String {
    let host = gethostname::gethostname();
    let chance = RandomState::new().build_hasher().finish();
    let (host, process) = (host.to_string_lossy(), std::process::id());
    format!("{host}/{process}/{chance:016x}")
}

/// Runs the loops of an instance.
pub struct Supervisor {
    /// Not counted.
    db: Changefeed,
    options: InstanceOptions,
    meters: Arc<Meters>,
    health: Health,
    /// Whichever loop ends first with an error ends the others.
    stop: CancellationToken,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Supervisor {
    /// Nothing runs yet.
    pub fn new(db: &Changefeed, options: InstanceOptions, shutdown: &CancellationToken) -> Self {
        Supervisor {
            db: db.clone(),
            options,
            meters: Meters::new(),
            health: Health::default(),
            stop: shutdown.child_token(),
        }
    }

    /// How this instance works.
    pub fn options(&self) -> &InstanceOptions {
        &self.options
    }

    /// The database, with every call counted.
    pub fn database(&self) -> Changefeed {
        let store = self.db.store().clone();
        Changefeed::new(Metered::around(store, self.meters.clone()))
    }

    /// The same for requests, which leave connections to the loops.
    pub fn database_for_requests(&self) -> Changefeed {
        let store = self.db.store().clone();
        Changefeed::new(Metered::for_requests(store, self.meters.clone()))
    }

    /// What this instance has counted.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// How its loops are.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Cancelled when this instance is stopped, or when one of its loops cannot go on.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Does everything that the roles say, until told to stop. `address` is where the instance answers
    /// requests, if it does.
    pub async fn run(self, address: Option<String>) -> Result<()> {
        let InstanceOptions { name, roles, .. } = &self.options;
        let who = Introduction {
            name: name.clone(),
            roles: roles.iter().map(Role::to_string).collect(),
            address,
        };
        let (sweeping, delivering, watching, pushing) = (
            self.in_loop(Role::Sweep),
            self.in_loop(Role::Deliver),
            self.in_loop(Role::Watch),
            self.in_loop(Role::Push),
        );
        let (dispatch, webhooks) = (&self.options.dispatch, &self.options.webhooks);
        let stop = || self.stop.clone();
        let (swept, delivered, watched, pushed, (), (), ()) = tokio::join!(
            self.part(Role::Sweep, sweeping::sweep(&sweeping, name, stop())),
            self.part(Role::Deliver, async {
                let dispatch = DispatchOptions {
                    owner: name.clone(),
                    ..dispatch.clone()
                };
                let totals = deliver(&delivering, webhooks.clone(), dispatch, stop()).await;
                totals.map(drop)
            }),
            self.part(
                Role::Watch,
                watching::watch(&watching, &self.options, stop())
            ),
            self.part(
                Role::Push,
                pushing::push(&pushing, &self.options, &self.meters, stop())
            ),
            announce(self.database(), who, self.meters.clone(), stop()),
            self.health.tell(stop()),
            async {
                if roles.contains(&Role::Http) {
                    let warming = warming::warm_up(&self.db);
                    stop().run_until_cancelled(warming).await;
                }
            },
        );
        swept.and(delivered).and(watched).and(pushed)
    }

    /// The database for a loop: its calls are counted, and it is seen when they are not answered.
    fn in_loop(&self, role: Role) -> Changefeed {
        let (store, pulse) = (self.db.store().clone(), self.health.pulse(role.as_str()));
        Changefeed::new(Metered::in_loop(store, self.meters.clone(), pulse))
    }

    /// Runs a loop, if this instance does such things; when it ends, everything else ends too.
    async fn part(&self, role: Role, work: impl Future<Output = Result<()>>) -> Result<()> {
        if !self.options.roles.contains(&role) {
            return Ok(());
        }
        self.health.runs(role.as_str());
        let ended = work.await;
        let why = match &ended {
            Ok(()) => "it was stopped".to_owned(),
            Err(error) => error.to_string(),
        };
        self.health.ended(role.as_str(), why);
        self.stop.cancel();
        ended
    }
}
