//! The guard: what is refused however it is spelt, and what nobody ever connects to.

use changefeed_core::Answer;
use changefeed_receiver::Receiver;

use crate::webhook::support::*;

#[tokio::test]
async fn private_addresses_are_refused_however_they_are_spelt() {
    let receiver = Receiver::start().await.unwrap();
    let port = receiver.address().port();
    let client = guarded();
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "0",
        "0.0.0.0",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.127.255.255",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "224.0.0.1",
        "255.255.255.255",
        "user:password@127.0.0.1",
    ] {
        let url = format!("http://{host}:{port}/");
        let sent = client.send(&target(&url), &event()).await;
        assert_eq!(sent.answer, Answer::None, "{url}");
        let error = sent.attempt.error.unwrap();
        let refused = error.contains("which changefeed is told not to call");
        assert!(refused, "{url}: {error}");
        // Some of these spellings are no names for TLS, which is as good a reason.
        let url = format!("https://{host}:{port}/");
        let sent = client.send(&target(&url), &event()).await;
        let error = sent.attempt.error.unwrap();
        let refused = error.contains("which changefeed is told not to call");
        assert!(refused || error.starts_with("TLS with"), "{url}: {error}");
    }
    assert_eq!(receiver.seen().connections, 0);
}

/// Whoever may define a trigger would be told the credentials of the machine.
#[tokio::test]
async fn metadata_services_are_refused_unless_they_are_allowed() {
    let client = client();
    for host in [
        "169.254.169.254",
        "0xa9fea9fe",
        "169.254.170.2",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
        "[fd00:ec2::254]",
    ] {
        let url = format!("http://{host}/latest/meta-data/");
        let sent = client.send(&target(&url), &event()).await;
        assert_eq!(sent.answer, Answer::None, "{url}");
        let error = sent.attempt.error.unwrap();
        let refused = error.contains("which changefeed is told not to call");
        assert!(refused, "{url}: {error}");
    }
}

#[tokio::test]
async fn they_are_called_when_allowed() {
    let receiver = Receiver::start().await.unwrap();
    let port = receiver.address().port();
    for host in ["127.0.0.1", "2130706433", "localhost", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/");
        let sent = client().send(&target(&url), &event()).await;
        assert_eq!(
            sent.attempt.status,
            Some(200),
            "{url}: {:?}",
            sent.attempt.error
        );
    }
}
