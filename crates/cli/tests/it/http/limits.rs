//! What is too much, too slow or too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_testkit::backend::{Backend, SqliteBackend};
use changefeed_testkit::run;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::client::{get, request};
use crate::http::reading::CHANGES;
use crate::http::serving::{Serving, changefeed, orders, shop, waits};

fn case(case: impl AsyncFnOnce(Arc<dyn Backend>)) {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
        case(backend).await;
    });
}

#[test]
fn a_body_that_is_too_large_is_refused_unread() {
    case(async |backend| {
        let (_, serving) = shop(&backend, &["--max-body", "2000"]).await;
        let large = json!({"name": "x", "comment": "c".repeat(3000)});
        let post = request("POST", "/api/feeds").json(large);
        post.send(serving.at).await.problem(413);
        // Announced, but never sent: nobody waits for it.
        let mut stream = TcpStream::connect(serving.at).await.unwrap();
        let head = format!(
            "POST /api/feeds HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: 10000000\r\n\r\n",
            serving.at
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 413");
        assert_eq!(serving.get("/healthz").await.status, 200);
    });
}

#[test]
fn more_clients_than_may_wait_are_told_when_to_come_back() {
    case(async |backend| {
        let (_, serving) = shop(&backend, &["--max-waiting", "3"]).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            let stream = get(CHANGES).header("accept", "text/event-stream");
            open.push(stream.open(serving.at).await);
        }
        waits(&serving, 3).await;
        for refused in [
            get(CHANGES).header("accept", "text/event-stream"),
            get(format!("{CHANGES}?after=last&wait=10000")),
        ] {
            let answer = refused.send(serving.at).await;
            answer.problem(503);
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        // Who does not wait is served all the same.
        assert_eq!(serving.get(CHANGES).await.status, 200);
        open.clear();
        waits(&serving, 0).await;
    });
}

#[test]
fn requests_beyond_the_limit_queue_for_a_moment_and_are_then_refused() {
    case(async |backend| {
        let args = ["--max-requests", "1", "--request-timeout", "2s"];
        let (_, serving) = shop(&backend, &args).await;
        // A body that does not come keeps its request at work.
        let mut slow = TcpStream::connect(serving.at).await.unwrap();
        let head = format!(
            "POST /api/feeds HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: 10\r\n\r\n",
            serving.at
        );
        slow.write_all(head.as_bytes()).await.unwrap();
        let began = Instant::now();
        // However the two meet, none is lost: either the place is free again in time, or there is
        // a sentence that says when.
        let answer = serving.get("/api/feeds").await;
        match answer.status {
            200 => assert!(began.elapsed() <= Duration::from_secs(4)),
            _ => {
                answer.problem(503);
                assert_eq!(answer.header("retry-after"), Some("1"));
            }
        }
        let mut first = vec![0; 12];
        slow.read_exact(&mut first).await.unwrap();
        assert_eq!(
            first, b"HTTP/1.1 503",
            "a body that does not come is not waited for"
        );
        assert_eq!(serving.get("/api/feeds").await.status, 200);
    });
}

#[test]
fn a_header_that_comes_drop_by_drop_is_cut_off() {
    case(async |backend| {
        let (_, serving) = shop(&backend, &[]).await;
        let mut stream = TcpStream::connect(serving.at).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nho")
            .await
            .unwrap();
        let began = Instant::now();
        let mut rest = Vec::new();
        // Whatever it says, it ends.
        let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest))
            .await
            .expect("the connection is still open");
        assert!(
            began.elapsed() >= Duration::from_secs(5),
            "an honest client has time"
        );
    });
}

#[test]
fn nonsense_on_the_wire_is_answered_and_harms_nobody() {
    case(async |backend| {
        let (_, serving) = shop(&backend, &[]).await;
        let long = format!(
            "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
            "x".repeat(100_000)
        );
        let bytes: [&[u8]; 4] = [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not tls here",
            b"FROB \x00\x01 HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: -1\r\n\r\n",
            long.as_bytes(),
        ];
        for nonsense in bytes {
            let mut stream = TcpStream::connect(serving.at).await.unwrap();
            // It may hang up while we are still talking.
            let _ = stream.write_all(nonsense).await;
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            let _ = tokio::time::timeout(Duration::from_secs(30), read)
                .await
                .expect("the connection is still open");
            let text = String::from_utf8_lossy(&answer);
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
        }
        assert_eq!(serving.get("/healthz").await.status, 200);
    });
}

#[test]
fn tls_by_certificate_files() {
    case(async |backend| {
        let url = orders(&backend).await;
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
        let serving = Serving::start(&url, &["--tls-cert", cert, "--tls-key", key]);

        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from(made.cert.der().to_vec()))
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(serving.at).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = connector.connect(name, stream).await.unwrap();
        let question = get(CHANGES).header("accept", "text/event-stream");
        let mut open = question.open_on(stream, "localhost").await;
        assert_eq!(open.status, 200);
        let strict = |(name, _): &&(String, String)| name == "strict-transport-security";
        assert!(open.headers.iter().find(strict).is_some());
        let app = backend.session().await;
        app.run("insert into orders values (1, 1, 'x')").await;
        assert!(open.event().await.is_some());

        // Wrong files are told apart at the start.
        for (cert, key, sentence) in [
            (key, key, "holds no certificate"),
            (cert, cert, "cannot be read as a private key"),
            ("missing.pem", key, "cannot be read as a certificate"),
        ] {
            let args = ["serve", "--tls-cert", cert, "--tls-key", key];
            let refused = changefeed(&url, &args).output().unwrap();
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(
                !refused.status.success() && said.contains(sentence),
                "{said}"
            );
        }
    });
}
