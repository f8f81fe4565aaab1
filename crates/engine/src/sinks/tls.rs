//! TLS to brokers, with the certificates that the system trusts, or those of the file in `SSL_CERT_FILE`.

use std::sync::Arc;

use super::webhook;

/// Connects to `host[:port]`, whose certificate has to bear that name.
pub(super) async fn connect(
    server: &str,
    port: u16,
) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, String> {
    let (host, port) = match server.rsplit_once(':') {
        Some((host, text)) if !text.ends_with(']') => {
            let port = text
                .parse()
                .map_err(|_| format!("'{text}' is not a port"))?;
            (host, port)
        }
        _ => (server, port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = rustls::pki_types::ServerName::try_from(host.to_owned())
        .map_err(|_| format!("'{host}' is not a name that a certificate can have"))?;
    let stream = tokio::net::TcpStream::connect((host, port))
        .await
        .map_err(|e| e.to_string())?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    // With our own provider: the process has none that everybody agrees on.
    let config = webhook::tls(&[]).map_err(|e| e.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connected = connector.connect(name, stream).await;
    connected.map_err(|e| format!("TLS fails: {e}"))
}
