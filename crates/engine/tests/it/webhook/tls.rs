//! HTTPS, with a certificate that is trusted and with one that is not.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::Answer;
use changefeed_engine::sinks::webhook::{WebhookClient, WebhookOptions};
use changefeed_receiver::Receiver;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::webhook::support::*;

/// Decrypts what arrives and passes it on; returns the port and the certificate.
async fn terminate(receiver: &Receiver) -> (u16, Vec<u8>) {
    let names = vec!["localhost".to_owned()];
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(names).unwrap();
    let der = cert.der().to_vec();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let behind = receiver.address();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await?;
                let mut inside = TcpStream::connect(behind).await?;
                tokio::io::copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });
    (port, der)
}

#[tokio::test]
async fn a_trusted_certificate_is_accepted() {
    let receiver = Receiver::start().await.unwrap();
    let (port, der) = terminate(&receiver).await;
    let client = WebhookClient::new(WebhookOptions {
        root_certificates: vec![der],
        ..WebhookOptions::default()
    })
    .unwrap();
    let target = target(&format!("https://localhost:{port}/"));
    for _ in 0..2 {
        let sent = client.send(&target, &event()).await;
        assert_eq!(sent.attempt.status, Some(200), "{:?}", sent.attempt.error);
    }
    assert_eq!(receiver.seen().connections, 1);
}

#[tokio::test]
async fn an_unknown_certificate_is_refused() {
    let receiver = Receiver::start().await.unwrap();
    let (port, _) = terminate(&receiver).await;
    let target = target(&format!("https://localhost:{port}/"));
    let sent = client().send(&target, &event()).await;
    assert_eq!(sent.answer, Answer::None);
    let error = sent.attempt.error.unwrap();
    assert!(error.starts_with("TLS with localhost:"), "{error}");
    assert_eq!(receiver.seen().requests, 0);
}

#[tokio::test]
async fn a_receiver_without_tls_is_told() {
    let receiver = Receiver::start().await.unwrap();
    receiver.otherwise(changefeed_receiver::Reply::Garbage);
    let target = target(&receiver.url("/").replace("http:", "https:"));
    let sent = client().send(&target, &event()).await;
    assert_eq!(sent.answer, Answer::None);
    let error = sent.attempt.error.unwrap();
    assert!(
        error.contains("TLS with") || error.contains("closed") || error.contains("reset"),
        "{error}"
    );
}

#[tokio::test]
async fn a_connection_has_a_limit_of_its_own() {
    // Connections are taken into the backlog, and nobody ever says anything on them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = WebhookClient::new(WebhookOptions {
        connect_timeout: Duration::from_millis(200),
        ..WebhookOptions::default()
    })
    .unwrap();
    let target = target(&format!("https://{}/", silent.local_addr().unwrap()));
    let sent = client.send(&target, &event()).await;
    assert_eq!(sent.answer, Answer::None);
    let error = sent.attempt.error.unwrap();
    assert!(
        error.ends_with("no connection within the limit of 200ms"),
        "{error}"
    );
}
