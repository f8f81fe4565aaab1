//! URLs, TLS and the pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use changefeed_core::{Error, Kind, Result, SchemaStore, require_current};
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::Host;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::PostgresStore;
use crate::error::db;

/// Connections a store keeps at most, the one that listens not counted.
const POOL_SIZE: usize = 10;

/// What every session of ours is set to, so that neither text forms nor the isolation that
/// sweeps need depend on the server's or the user's defaults. A database without an encoding holds
/// any bytes, and must not refuse to hand them out because they are not UTF-8.
const SESSION: &str = "set timezone = 'UTC'; set datestyle = 'ISO, YMD'; set bytea_output = hex; \
     set intervalstyle = postgres; set extra_float_digits = 1; set array_nulls = on; \
     set lc_monetary = 'C'; set xmlbinary = base64; \
     select set_config('client_encoding', 'SQL_ASCII', false) \
     where getdatabaseencoding() = 'SQL_ASCII'; \
     set default_transaction_isolation = 'read committed'";

/// Where to connect, and how.
pub(crate) struct Target {
    config: Config,
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

/// Where a URL leads, for people: host and database, and nothing of user or password. Where the password
/// ends is for the driver to say, and nobody else to guess.
pub fn place(url: &str) -> String {
    let mut place = "postgres".to_owned();
    let Ok(config) = configuration(url) else {
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
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let mut config = configuration(url)?;
        let verify = url.contains("sslmode=verify-");
        if config.get_application_name().is_none() {
            config.application_name("changefeed");
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
        Ok(Target { config, tls })
    }

    pub(crate) fn pool(&self) -> Result<Pool> {
        let manager = Manager::from_config(
            self.config.clone(),
            self.tls.clone(),
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        Pool::builder(manager)
            .max_size(POOL_SIZE)
            .post_create(Hook::async_fn(|client, _| {
                Box::pin(async move {
                    client
                        .batch_execute(SESSION)
                        .await
                        .map_err(HookError::Backend)
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

/// Names the stream type of the TLS connector without spelling its generics everywhere.
pub(crate) trait MakeTls {
    type Stream;
}

impl MakeTls for MakeRustlsConnect {
    type Stream = <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream;
}

impl PostgresStore {
    /// A connection from the pool, whatever is installed in the database.
    pub(crate) async fn raw_client(&self) -> Result<Object> {
        use deadpool_postgres::PoolError;
        self.inner.pool.get().await.map_err(|e| match e {
            PoolError::Backend(e) => db(e),
            PoolError::PostCreateHook(HookError::Backend(e)) => db(e),
            other => Error::new(
                Kind::Unavailable,
                "no connection to the database is to be had",
            )
            .caused_by(other),
        })
    }

    /// A connection to a database whose schema this program knows.
    pub(crate) async fn client(&self) -> Result<Object> {
        if !self.inner.schema_checked.load(Ordering::Relaxed) {
            require_current(self.schema().await?)?;
            self.inner.schema_checked.store(true, Ordering::Relaxed);
        }
        self.raw_client().await
    }
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
