//! Everything that `changefeed serve` does, within another program.

use changefeed_core::Result;
use changefeed_engine::supervisor::{InstanceOptions, Role, Supervisor};
use changefeed_engine::{CancellationToken, Changefeed};
#[cfg(feature = "server")]
use changefeed_server::{Options as HttpOptions, Server};

/// What [`serve`] does, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The database.
    pub db: Changefeed,
    /// What this instance does: everything unless its roles say otherwise.
    pub instance: InstanceOptions,
    /// Where it answers requests; nowhere unless this is given.
    #[cfg(feature = "server")]
    pub http: Option<HttpOptions>,
}

impl ServeOptions {
    /// Sweeps, delivers events and runs watches, under a name of its own.
    pub fn new(db: &Changefeed) -> Self {
        ServeOptions {
            db: db.clone(),
            instance: InstanceOptions::default(),
            #[cfg(feature = "server")]
            http: None,
        }
    }
}

/// Does everything that an instance of the program does, until told to stop. Any number of instances may
/// serve one database: they share the work.
pub async fn serve(options: ServeOptions, shutdown: CancellationToken) -> Result<()> {
    Service::prepare(options, &shutdown).await?.run().await
}

/// An instance that listens already, if it answers requests, but does nothing yet.
#[derive(Debug)]
pub struct Service {
    supervisor: Supervisor,
    #[cfg(feature = "server")]
    server: Option<Server>,
}

impl Service {
    /// Binds the address, if there is one.
    pub async fn prepare(options: ServeOptions, shutdown: &CancellationToken) -> Result<Service> {
        let mut instance = options.instance;
        #[cfg(feature = "server")]
        let http = options
            .http
            .filter(|_| instance.roles.contains(&Role::Http));
        #[cfg(feature = "server")]
        let answers = http.is_some();
        #[cfg(not(feature = "server"))]
        let answers = false;
        instance.roles.retain(|role| answers || *role != Role::Http);
        let supervisor = Supervisor::new(&options.db, instance, shutdown);
        Ok(Service {
            #[cfg(feature = "server")]
            server: match http {
                Some(http) => Some(Server::bind(&supervisor, http).await?),
                None => None,
            },
            supervisor,
        })
    }

    /// The HTTP server, if there is one.
    #[cfg(feature = "server")]
    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Does everything that its roles say, until told to stop.
    pub async fn run(self) -> Result<()> {
        #[cfg(feature = "server")]
        if let Some(server) = self.server {
            let address = server.address().to_string();
            let (ended, ()) = tokio::join!(self.supervisor.run(Some(address)), server.run());
            return ended;
        }
        self.supervisor.run(None).await
    }
}
