//! Connections: accepted, encrypted where that is wanted, and ended in time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use changefeed::{CancellationToken, Error, Kind, Result};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// How long a client may take to send the header of a request, or to begin the next one.
const HEADER: Duration = Duration::from_secs(10);
/// How long a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After this time without a sign that what was sent has arrived, a connection is over.
const SILENCE: Duration = Duration::from_secs(60);

/// Binds an address.
pub(crate) async fn bind(address: std::net::SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| {
        let advice = match e.kind() {
            io::ErrorKind::AddrInUse => "another program listens there; use --listen ADDRESS:PORT",
            io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; use another",
            _ => "use --listen with an address of this machine",
        };
        Error::new(
            Kind::Unavailable,
            format!("the server cannot listen on {address}"),
        )
        .advise(advice)
        .caused_by(e)
    })
}

/// Reads a certificate and its key.
pub(crate) fn tls(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let wrong = |path: &Path, what: &str| {
        Error::invalid(format!("'{}' {what}", path.display())).advise(
            "--tls-cert takes the certificate with its chain, --tls-key its key, both as PEM",
        )
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|e| wrong(certificate, "cannot be read as a certificate").caused_by(e))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "holds no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| wrong(key, "cannot be read as a private key").caused_by(e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|b| b.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|e| wrong(key, "does not go with the certificate").caused_by(e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until told to stop; then what is under way gets `grace`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    grace: Duration,
    shutdown: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                prepare(&stream);
                let watcher = graceful.watcher();
                tokio::spawn(connection(stream, tls.clone(), router.clone(), watcher));
            }
            Err(error) => {
                // Out of files, most likely: some will be closed soon.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(grace, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("requests are still under way after {grace:?}; they are cut off");
    }
}

fn prepare(stream: &TcpStream) {
    // A small answer must not wait for a full packet.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(SILENCE));
    #[cfg(not(target_os = "linux"))]
    let _ = SILENCE;
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, watcher: Watcher) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER)
        // Thousands of them wait with empty hands.
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .max_concurrent_streams(100);
    let service = TowerToHyperService::new(router);
    // However a connection ends, that is the client's business: there is nobody to tell.
    match tls {
        None => {
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let _ = watcher.watch(connection.into_owned()).await;
        }
        Some(tls) => {
            let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await else {
                return;
            };
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let _ = watcher.watch(connection.into_owned()).await;
        }
    }
}
