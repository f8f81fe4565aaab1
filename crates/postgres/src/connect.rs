//! URLs, TLS and the pool.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{Error, Kind, Result};
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::Host;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::db;

/// Connections for work that a store keeps at most, unless the URL says `max_connections`.
const MOST: usize = 10;

/// Connections for sweeps. A sweeper uses one at a time; there are more so that one whose server
/// process does not answer cannot stop the sweepers of other groups.
const MOST_NUMBERING: usize = 4;

/// What our sessions are called in `pg_stat_activity`, and those in which an application runs
/// statements of its own.
const NAME: &str = "changefeed";
const NAME_IN_ULIDS: &str = "changefeed/ulids";

/// A setting that a session has from its start on. What we set later would be lost, and seen by others,
/// where a pooler gives every transaction another session.
const MARK: &str = "changefeed.session";

/// The server's limit for a statement, unless a call says otherwise.
pub(crate) const BRIEF: Duration = Duration::from_secs(10);

/// What every session is set to, so that text forms do not depend on the server's or the user's
/// defaults. A database without an encoding holds any bytes, and must not refuse to hand them out
/// because they are not UTF-8.
const FORMS: &str = "set timezone = 'UTC'; set datestyle = 'ISO, YMD'; set bytea_output = hex; \
     set intervalstyle = postgres; set extra_float_digits = 1; set array_nulls = on; \
     set lc_monetary = 'C'; set xmlbinary = base64; \
     select pg_catalog.set_config('client_encoding', 'SQL_ASCII', false) \
     from (select 1) one where pg_catalog.getdatabaseencoding() operator(pg_catalog.=) 'SQL_ASCII'; \
     set default_transaction_isolation = 'read committed'; \
     set default_transaction_deferrable = off";

/// What our own sessions are set to besides. Nobody else's functions, operators and types: whoever may
/// create in a schema of the role's path could otherwise have us run them. An error where rows are
/// hidden from us, because they would look like deleted ones. No looking at constraints of partitions,
/// whose functions the planner would run. No transaction that a stopped process of ours keeps open.
const OURS: &str = "set search_path = pg_catalog, pg_temp; set row_security = off; set jit = off; \
     set constraint_exclusion = off; set idle_in_transaction_session_timeout = '60s'; set lock_timeout = 0";

/// A statement is planned with its values each time: a plan that was made for an empty table reads
/// a grown one row by row. Sweeps do without, because theirs cannot go wrong.
const PLANNED_WITH_VALUES: &str = "set plan_cache_mode = force_custom_plan";

/// A statement is planned once, and only with index scans: a plan that is right whatever the statistics say. It
/// locks the tables of all watches, so it gives way before it could be part of a deadlock.
const BY_INDEX: &str = "set lock_timeout = '100ms'; set plan_cache_mode = force_generic_plan; set enable_seqscan = off; \
     set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off";

/// Where to connect, and how.
#[derive(Clone)]
pub(crate) struct Target {
    config: Config,
    /// Connections for work at most.
    most: usize,
    /// Whether sessions carry our mark from their start.
    marked: bool,
    tls: MakeRustlsConnect,
}

/// What a URL says, as the driver reads it.
fn configuration(url: &str) -> Result<Config> {
    // `verify-ca` and `verify-full` are words of libpq that the driver does not know.
    url.replace("sslmode=verify-full", "sslmode=require")
        .replace("sslmode=verify-ca", "sslmode=require")
        .parse()
        .map_err(|e: tokio_postgres::Error| {
            // The driver's message may quote parts of the URL, but never the password.
            Error::invalid("this is not a PostgreSQL URL")
                .advise("use postgres://user:password@host:5432/database")
                .caused_by(e)
        })
}

/// What a URL says to us, and not to the driver, which refuses what it does not know.
struct Ours {
    /// Connections for work at most.
    most: usize,
    /// Whether there is a pooler in between that gives each of its clients a session of its own.
    pooled_sessions: bool,
}

/// Takes our own options out of a URL.
fn own_options(url: &str) -> Result<(String, Ours)> {
    let mut ours = Ours {
        most: MOST,
        pooled_sessions: false,
    };
    let Some((place, options)) = url.split_once('?') else {
        return Ok((url.to_owned(), ours));
    };
    let mut others = Vec::new();
    for option in options.split('&') {
        match option.split_once('=') {
            Some(("max_connections", number)) => {
                ours.most = number.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
                    Error::invalid(format!("'{number}' is not a number of connections"))
                        .advise("write max_connections=10, or any number from 1 on")
                })?;
            }
            Some(("pooler", "session")) => ours.pooled_sessions = true,
            Some(("pooler", mode)) => {
                return Err(Error::invalid(format!("'{mode}' is no mode of a pooler"))
                    .advise("write pooler=session, or connect to the server itself"));
            }
            _ => others.push(option),
        }
    }
    let url = match others.is_empty() {
        true => place.to_owned(),
        false => format!("{place}?{}", others.join("&")),
    };
    Ok((url, ours))
}

/// Error of a connection that does not lead to a session of its own.
pub(crate) fn pooled() -> Error {
    Error::invalid("the connection goes through a pooler, and changefeed needs sessions of its own")
        .advise(
            "connect to the PostgreSQL server itself; behind a pooler whose clients keep their session \
             (pgbouncer: pool_mode = session, ignore_startup_parameters = options) add pooler=session to the URL",
        )
}

/// Where a URL leads, for people: host and database, and nothing of user or password. Where the password
/// ends is for the driver to say, and nobody else to guess.
pub fn place(url: &str) -> String {
    let mut place = "postgres".to_owned();
    let Ok(config) = own_options(url).and_then(|(url, _)| configuration(&url)) else {
        return place;
    };
    // A password with an '@' that was not escaped ends up in the host.
    if let Some(Host::Tcp(host)) = config.get_hosts().first()
        && !host.contains('@')
    {
        place.push_str("://");
        place.push_str(host);
        if let Some(port) = config.get_ports().first() {
            place.push_str(&format!(":{port}"));
        }
        if let Some(database) = config.get_dbname() {
            place.push('/');
            place.push_str(database);
        }
    }
    place
}

impl Target {
    /// What errors call the server: host and port, and nothing of user or password.
    pub(crate) fn server(&self) -> String {
        let hosts = self.config.get_hosts().iter().enumerate();
        let named = hosts.filter_map(|(at, host)| match host {
            // A password with an '@' that was not escaped ends up in the host.
            Host::Tcp(host) if !host.contains('@') => {
                let ports = self.config.get_ports();
                let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
                Some(format!("{host}:{port}"))
            }
            _ => None,
        });
        match named.collect::<Vec<_>>() {
            places if places.is_empty() => "PostgreSQL server".to_owned(),
            places => format!("PostgreSQL server at {}", places.join(", ")),
        }
    }

    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (url, ours) = own_options(url)?;
        let mut config = configuration(&url)?;
        if !ours.pooled_sessions {
            // A pooler that hands out sessions anew refuses this, or forgets it.
            let options = config.get_options().unwrap_or_default();
            config.options(format!("{options} -c {MARK}=1"));
        }
        let verify = url.contains("sslmode=verify-");
        if config.get_application_name().is_none() {
            config.application_name(NAME);
        }
        // As libpq has it.
        if config.get_password().is_none()
            && let Some(password) = std::env::var_os("PGPASSWORD")
        {
            config.password(password.as_encoded_bytes());
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(10));
        }
        // A connection whose network was cut must not hang for ever in the middle of a call.
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(Duration::from_secs(30));
        let tls = if config.get_ssl_mode() == SslMode::Disable {
            // Never used, but the type wants one.
            tls(false)?
        } else {
            tls(verify)?
        };
        Ok(Target {
            config,
            most: ours.most,
            marked: !ours.pooled_sessions,
            tls,
        })
    }

    /// For everything but numbering and ULID transactions.
    pub(crate) fn work_pool(&self) -> Result<Pool> {
        self.pool(self.most, format!("{}; {PLANNED_WITH_VALUES}", ours()))
    }

    /// For sweeps and their leases.
    pub(crate) fn numbering_pool(&self) -> Result<Pool> {
        self.pool(MOST_NUMBERING, ours())
    }

    /// For the session that waits for commits on behalf of all watches.
    pub(crate) fn waiting_pool(&self) -> Result<Pool> {
        self.pool(1, format!("{}; {BY_INDEX}", ours()))
    }

    /// For ULID transactions, in which the application's own statements run: names, limits and plans
    /// are those of its role.
    pub(crate) fn application_pool(&self) -> Result<Pool> {
        let mut named = self.clone();
        if named.config.get_application_name() == Some(NAME) {
            named.config.application_name(NAME_IN_ULIDS);
        }
        named.pool(self.most, FORMS.to_owned())
    }

    /// An expression that is '1' in a session that began with our mark.
    fn mark(&self) -> String {
        match self.marked {
            true => format!("pg_catalog.current_setting('{MARK}', true)"),
            false => "'1'".to_owned(),
        }
    }

    fn pool(&self, most: usize, settings: String) -> Result<Pool> {
        let manager = Manager::from_config(
            self.config.clone(),
            self.tls.clone(),
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let settings: Arc<str> = format!("{settings}; select {}", self.mark()).into();
        Pool::builder(manager)
            .max_size(most)
            .post_create(Hook::async_fn(move |client, _| {
                let settings = settings.clone();
                Box::pin(async move {
                    let answers = client
                        .simple_query(&settings)
                        .await
                        .map_err(HookError::Backend)?;
                    let mark = answers.iter().rev().find_map(|message| match message {
                        SimpleQueryMessage::Row(row) => row.get(0),
                        _ => None,
                    });
                    match mark {
                        Some("1") => Ok(()),
                        _ => Err(HookError::message("not a session of its own")),
                    }
                })
            }))
            .build()
            .map_err(|e| Error::new(Kind::Unavailable, "no connection pool").caused_by(e))
    }

    /// A connection outside the pool, for listening.
    pub(crate) async fn dial(
        &self,
    ) -> Result<(
        Client,
        Connection<Socket, <MakeRustlsConnect as MakeTls>::Stream>,
    )> {
        self.config.connect(self.tls.clone()).await.map_err(db)
    }
}

/// A connection that is not ours but an application's: as the URL says, TLS included, with none of our settings. What
/// the server tells beside its answers goes to `told`. It ends when the client is dropped.
pub async fn session(url: &str, told: impl Fn(&str) + Send + 'static) -> Result<Client> {
    let (client, mut connection) = Target::parse(url)?.dial().await?;
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notice(notice) = message {
                told(notice.message());
            }
        }
    });
    Ok(client)
}

/// Names the stream type of the TLS connector without spelling its generics everywhere.
pub(crate) trait MakeTls {
    type Stream;
}

impl MakeTls for MakeRustlsConnect {
    type Stream = <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream;
}

fn ours() -> String {
    format!(
        "{OURS}; {FORMS}; set statement_timeout = {}",
        BRIEF.as_millis()
    )
}

fn tls(verify: bool) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::new(Kind::Unavailable, "TLS cannot be set up").caused_by(e))?;
    let config = if verify {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        builder.with_root_certificates(roots).with_no_client_auth()
    } else {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
            .with_no_client_auth()
    };
    Ok(MakeRustlsConnect::new(config))
}

/// What `sslmode=prefer` and `sslmode=require` mean to every PostgreSQL client: encrypt, but
/// take any certificate. `sslmode=verify-full` checks it against the system's roots.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
