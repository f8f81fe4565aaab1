//! HTTP connections that send nothing, too much, or garbage.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend};
use changefeed_testkit::process::signal;
use changefeed_testkit::receiver::Receiver;
use changefeed_testkit::{eventually, run};
use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::http::client::get;
use crate::http::serving::{Serving, changefeed, orders, out, shop, token};

const STREAM: &str = "/api/feeds/orders/shards/1/changes";

async fn sqlite() -> Arc<dyn Backend> {
    Arc::new(SqliteBackend::fresh().await)
}

/// A server that may open only this many files.
fn with_files(url: &str, files: u32) -> Serving {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_changefeed");
    let script = format!("ulimit -n {files}; exec {program} serve --listen 127.0.0.1:0");
    command
        .args(["-c", &script])
        .env("CHANGEFEED_DB", url)
        .env("RUST_LOG", "warn")
        .stderr(Stdio::inherit());
    Serving::spawn(&mut command)
}

/// Everything that a connection brings until it ends.
async fn end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let _ = tokio::time::timeout(Duration::from_secs(60), read)
        .await
        .expect("the connection is still open");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ten seconds after it was opened, or after its last answer, a connection that asks nothing is over:
/// also before its first byte, which the HTTP library waits for without end.
#[test]
fn connections_that_send_nothing_are_cut_off() {
    run(async {
        let backend = sqlite().await;
        let (_, serving) = shop(&backend, &[]).await;
        let at = serving.at;
        let asked = format!("GET /healthz HTTP/1.1\r\nhost: {at}\r\n\r\n");
        let mut all = JoinSet::new();
        for beginning in [
            String::new(),
            "G".to_owned(),
            "PRI * HTTP/2".to_owned(),
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            "GET /healthz HTTP/1.1\r\nhost: 1".to_owned(),
            asked.clone(),
            format!("{asked}{asked}GET /he"),
        ] {
            all.spawn(async move {
                let mut stream = TcpStream::connect(at).await.unwrap();
                stream.write_all(beginning.as_bytes()).await.unwrap();
                let answers = beginning.matches("\r\n\r\n").count();
                let said = end(&mut stream).await;
                if beginning.starts_with("GET") {
                    assert_eq!(said.matches("HTTP/1.1 200 OK").count(), answers, "{said}");
                }
            });
        }
        // One byte at a time is no sign of life either.
        all.spawn(async move {
            let mut stream = TcpStream::connect(at).await.unwrap();
            let endless = async {
                while stream.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), endless)
                .await
                .expect("it may send for ever");
        });
        // A client that waits is not idle.
        let waiting = serving.get(format!("{STREAM}?after=last&wait=15000")).await;
        assert_eq!(waiting.status, 200);
        while let Some(ended) = all.join_next().await {
            ended.unwrap();
        }
    });
}

#[test]
fn with_256_files_a_thousand_silent_connections_do_not_stop_the_server() {
    run(async {
        let backend = sqlite().await;
        let url = orders(&backend).await;
        let serving = with_files(&url, 256);
        let mut silent = Vec::new();
        for number in 0..1000 {
            if let Ok(stream) = TcpStream::connect(serving.at).await {
                silent.push(stream);
            }
            if number % 100 == 99 {
                for path in ["/healthz", "/readyz", "/api/feeds", STREAM] {
                    let answer = serving.get(path).await;
                    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
                }
            }
        }
        let metrics = serving.get("/metrics").await.body;
        let open = metrics
            .lines()
            .find_map(|line| line.strip_prefix("changefeed_http_connections "))
            .unwrap();
        assert!(open.parse::<f64>().unwrap() <= 128.0, "{open}");
    });
}

/// Those who wait leave room for those who do not, and who finds no room at all is told so.
#[test]
fn with_few_files_those_who_wait_do_not_shut_the_others_out() {
    run(async {
        let backend = sqlite().await;
        let url = orders(&backend).await;
        let serving = with_files(&url, 64);
        let stream = get(STREAM).header("accept", "text/event-stream");
        let mut open = Vec::new();
        for _ in 0..24 {
            let answer = stream.open(serving.at).await;
            assert_eq!(answer.status, 200);
            open.push(answer);
        }
        let refused = stream.send(serving.at).await;
        assert!(refused.problem(503).contains("24 clients wait"));
        assert_eq!(serving.get("/healthz").await.status, 200);
        // The rest is taken by requests whose bodies do not come.
        let head = format!(
            "POST /api/feeds HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: 10\r\n\r\n",
            serving.at
        );
        let mut slow = Vec::new();
        let full = loop {
            assert!(slow.len() < 100, "there is always room");
            let mut stream = TcpStream::connect(serving.at).await.unwrap();
            let _ = stream.write_all(head.as_bytes()).await;
            slow.push(stream);
            let answer = serving.get("/healthz").await;
            if answer.status != 200 {
                break answer;
            }
        };
        assert!(full.problem(503).contains("connections"), "{full:?}");
        assert_eq!(full.header("retry-after"), Some("1"));
        drop((slow, open));
        eventually("there is room again", || async {
            (serving.get("/healthz").await.status == 200).then_some(())
        })
        .await;
    });
}

#[test]
fn what_cannot_be_read_as_http_gets_a_sentence() {
    run(async {
        let backend = sqlite().await;
        let (_, serving) = shop(&backend, &[]).await;
        let asked = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", serving.at);
        let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(200));
        let address = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(70_000));
        for (bytes, answers, status, sentence) in [
            (
                "\x16\x03\x01 no TLS here\r\n\r\n".to_owned(),
                0,
                400,
                "not a valid HTTP request",
            ),
            ("GET / HTTP/9.9\r\n\r\n".to_owned(), 0, 400, "not a valid"),
            (
                "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(),
                0,
                400,
                "not a valid",
            ),
            (long, 0, 431, "larger than 64 KiB"),
            (many, 0, 431, "more than 100 fields"),
            (address, 0, 431, "larger than 64 KiB"),
            (format!("{asked}garbage\r\n\r\n"), 1, 400, "not a valid"),
            (
                format!("{asked}{asked}{asked}\x01\r\n\r\n"),
                3,
                400,
                "not a valid",
            ),
        ] {
            let mut stream = TcpStream::connect(serving.at).await.unwrap();
            // It may be answered while the client is still talking.
            let _ = stream.write_all(bytes.as_bytes()).await;
            let said = end(&mut stream).await;
            let begin: String = bytes.chars().take(60).collect();
            let rest = said.match_indices("HTTP/1.1 ").map(|(at, _)| &said[at..]);
            let heads: Vec<&str> = rest.collect();
            assert_eq!(heads.len(), answers + 1, "{begin}: {said}");
            let last = heads[answers];
            assert!(
                last.starts_with(&format!("HTTP/1.1 {status} ")),
                "{begin}: {last}"
            );
            let (head, body) = last.split_once("\r\n\r\n").unwrap();
            assert!(
                head.contains("content-type: application/problem+json"),
                "{head}"
            );
            assert!(
                head.contains(&format!("content-length: {}", body.len())),
                "{head}"
            );
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(problem["status"], status);
            assert!(
                problem["detail"].as_str().unwrap().contains(sentence),
                "{body}"
            );
        }
    });
}

/// Lets a database be frozen for everybody at once.
struct Freezer {
    url: String,
    frozen: tokio::sync::watch::Sender<bool>,
}

impl Freezer {
    async fn before(url: &str) -> Freezer {
        let (frozen, freeze) = tokio::sync::watch::channel(false);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let address = url.split_once('@').unwrap().1.split('/').next().unwrap();
        let (server, url) = (address.to_owned(), url.replace(address, &own));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_client, to_server, freeze.clone()));
                tokio::spawn(pass(from_server, to_client, freeze.clone()));
            }
        });
        Freezer { url, frozen }
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: tokio::sync::watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        if frozen.wait_for(|frozen| !frozen).await.is_err() || read == 0 {
            return;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// What tells why nothing works is answered while nothing works; everything else is refused in time.
#[test]
fn a_database_that_hangs_is_told_of_and_nothing_waits_for_it_without_end() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let url = orders(&backend).await;
        let token = token(&url, "read");
        let freezer = Freezer::before(&url).await;
        let serving = Serving::start(&freezer.url, &["--request-timeout", "3s"]);
        let ask = |path: &str| get(path).token(&token);
        assert_eq!(ask("/api/consumers").send(serving.at).await.status, 200);
        freezer.frozen.send(true).unwrap();
        let not_ready = eventually("the sweeper is known to be stuck", || async {
            let answer = serving.get("/readyz").await;
            let checks = answer.json(503)["checks"].clone();
            let sweep = checks
                .as_array()
                .unwrap()
                .iter()
                .find(|c| c["check"] == "sweep");
            let stuck = sweep.is_some_and(|c| c["ok"] == false);
            stuck.then_some(answer.body)
        })
        .await;
        assert!(not_ready.contains("no answer within"), "{not_ready}");
        // By now the tokens that were known are long out of date.
        let at = serving.at;
        let mut refused = JoinSet::new();
        // More than there may be requests at work.
        for _ in 0..300 {
            let question = ask("/api/consumers");
            refused.spawn(async move { question.send(at).await });
        }
        for path in ["/healthz", "/metrics", "/api/openapi.json"] {
            let answer = tokio::time::timeout(Duration::from_secs(10), ask(path).send(at)).await;
            assert_eq!(answer.expect(path).status, 200, "{path}");
        }
        get("/metrics").send(at).await.problem(401);
        while let Some(answer) = refused.join_next().await {
            let answer = answer.unwrap();
            answer.problem(503);
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
        }
        freezer.frozen.send(false).unwrap();
        eventually("it is ready again", || async {
            (serving.get("/readyz").await.status == 200).then_some(())
        })
        .await;
        assert_eq!(ask("/api/consumers").send(serving.at).await.status, 200);
    });
}

/// Whoever may read can send more requests than there are connections to the database. What they ask for here takes
/// longer than this test waits; events are delivered all the same.
#[test]
fn requests_leave_connections_to_deliveries() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let url = orders(&backend).await;
        let receiver = Receiver::start().await.unwrap();
        let hook = receiver.url("/event");
        let create = format!("trigger create t --table orders --insert --webhook {hook}");
        out(&url, &create.split(' ').collect::<Vec<_>>());
        let serving = Serving::start(&url, &["--request-timeout", "300s"]);
        let (app, other) = (backend.session().await, backend.session().await);
        other
            .run("begin; lock table changefeed.consumer in access exclusive mode")
            .await;
        let mut requests = JoinSet::new();
        for _ in 0..30 {
            let at = serving.at;
            requests.spawn(async move { get("/api/consumers").send(at).await.status });
        }
        eventually("they wait for the lock", || async {
            let waiting = "select count(*) from pg_stat_activity \
                           where datname = current_database() and wait_event_type = 'Lock'";
            (app.number(waiting).await >= 6).then_some(())
        })
        .await;
        app.run("insert into orders values (1, 1, 'a')").await;
        eventually("the event is delivered", || async {
            (!receiver.requests().is_empty()).then_some(())
        })
        .await;
        assert_eq!(serving.get("/readyz").await.status, 200);
        other.run("rollback").await;
        while let Some(status) = requests.join_next().await {
            assert_eq!(status.unwrap(), 200);
        }
    });
}

/// The database answers, but not the sweeper: nothing gets a number, and that is not "ready".
#[test]
fn a_sweeper_that_gets_no_answer_makes_an_instance_not_ready() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let (_, serving) = shop(&backend, &[]).await;
        assert_eq!(serving.get("/readyz").await.status, 200);
        let app = backend.session().await;
        app.run("begin").await;
        app.run("lock table changefeed.shard in access exclusive mode")
            .await;
        eventually("the sweeper is known to be stuck", || async {
            let answer = serving.get("/readyz").await;
            if answer.status == 200 {
                return None;
            }
            let ready = answer.json(503);
            let check = |name: &str| {
                let checks = ready["checks"].as_array().unwrap();
                checks.iter().find(|c| c["check"] == name).unwrap().clone()
            };
            assert_eq!(check("database")["ok"], true, "{ready}");
            let said = check("sweep")["error"].as_str()?.to_owned();
            assert!(said.starts_with("sweep"), "{said}");
            Some(())
        })
        .await;
        app.run("rollback").await;
        eventually("it is ready again", || async {
            (serving.get("/readyz").await.status == 200).then_some(())
        })
        .await;
    });
}

#[test]
fn a_database_that_is_away_is_one_line_in_the_log_and_not_one_per_request() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let url = orders(&backend).await;
        let freezer = Freezer::before(&url).await;
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = changefeed(&freezer.url, &["serve", "--listen", "127.0.0.1:0"]);
        command
            .args(["--request-timeout", "2s", "--only", "http"])
            .stderr(std::fs::File::create(&log).unwrap());
        let serving = Serving::spawn(&mut command);
        assert_eq!(serving.get("/api/consumers").await.status, 200);
        backend
            .session()
            .await
            .run("alter table changefeed.consumer rename to gone")
            .await;
        for _ in 0..50 {
            serving.get("/api/consumers").await.problem(500);
        }
        let said = std::fs::read_to_string(&log).unwrap();
        let lines = said
            .lines()
            .filter(|l| l.contains("a request failed"))
            .count();
        assert_eq!(lines, 1, "{said}");
    });
}

/// A client that trusts any one certificate, and tells whether it was that one.
async fn trusts(serving: &Serving, certificate: &[u8]) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from(certificate.to_vec()))
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
    match connector.connect(name, stream).await {
        Ok(stream) => get("/healthz").open_on(stream, "localhost").await.status == 200,
        Err(_) => false,
    }
}

#[test]
fn a_hangup_reads_certificates_again_and_ends_nothing() {
    run(async {
        let backend = sqlite().await;
        let url = orders(&backend).await;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (cert, key) = (path("cert.pem"), path("key.pem"));
        let renew = || {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            std::fs::write(&cert, made.cert.pem()).unwrap();
            std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
            made.cert.der().to_vec()
        };
        let old = renew();
        let mut serving = Serving::start(&url, &["--tls-cert", &cert, "--tls-key", &key]);
        assert!(trusts(&serving, &old).await);
        let new = renew();
        assert!(!trusts(&serving, &new).await);
        signal(serving.process.pid(), Signal::HUP);
        eventually("the new certificate is used", || async {
            trusts(&serving, &new).await.then_some(())
        })
        .await;
        // One that cannot be read changes nothing.
        std::fs::write(&key, "nonsense").unwrap();
        signal(serving.process.pid(), Signal::HUP);
        for _ in 0..20 {
            assert!(trusts(&serving, &new).await);
        }
        assert!(serving.process.ended().is_none());
        // Without a certificate there is nothing to read, and nothing ends.
        let mut plain = Serving::start(&url, &[]);
        signal(plain.process.pid(), Signal::HUP);
        for _ in 0..20 {
            assert_eq!(plain.get("/healthz").await.status, 200);
        }
        assert!(plain.process.ended().is_none());
    });
}
