//! The receiver itself: a test that relies on it must know that it does what it is told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "everything here is test code: panicking is how a test fails"
)]

use std::time::Duration;

use bytes::Bytes;
use changefeed_receiver::{Keep, Receiver, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const REQUEST: &[u8] =
    b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nX-Case: Kept\r\nContent-Length: 5\r\n\r\nhello";

async fn connect(receiver: &Receiver) -> TcpStream {
    TcpStream::connect(receiver.address()).await.unwrap()
}

/// Everything until the receiver closes the connection.
async fn rest(client: &mut TcpStream) -> String {
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

async fn answer(reply: Reply) -> String {
    let receiver = Receiver::start().await.unwrap();
    receiver.next([reply]);
    let mut client = connect(&receiver).await;
    client.write_all(REQUEST).await.unwrap();
    client.shutdown().await.unwrap();
    rest(&mut client).await
}

#[tokio::test]
async fn requests_are_recorded_byte_for_byte_however_they_arrive() {
    let receiver = Receiver::start().await.unwrap();
    let mut client = connect(&receiver).await;
    for byte in REQUEST {
        client.write_all(&[*byte]).await.unwrap();
    }
    // Two more in one piece.
    client
        .write_all(&[REQUEST, REQUEST].concat())
        .await
        .unwrap();
    let requests = receiver.wait_for(3).await.unwrap();
    for request in &requests {
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/a?b=c")
        );
        assert_eq!(request.headers[1], ("X-Case".to_owned(), "Kept".to_owned()));
        assert_eq!(request.header("x-case"), Some("Kept"));
        assert_eq!(&request.body[..], b"hello");
        assert!(request.complete);
        assert_eq!((request.connection, &request.reply), (1, &Reply::Accept));
    }
    receiver.forget();
    assert!(receiver.requests().is_empty());
    assert_eq!(receiver.seen().requests, 3);
}

#[tokio::test]
async fn a_request_that_breaks_off_is_recorded_as_such() {
    let receiver = Receiver::start().await.unwrap();
    let mut client = connect(&receiver).await;
    client
        .write_all(&REQUEST[..REQUEST.len() - 1])
        .await
        .unwrap();
    drop(client);
    let requests = receiver.wait_for(1).await.unwrap();
    assert!(!requests[0].complete);
    assert_eq!(requests[0].path, "/a?b=c");
}

#[tokio::test]
async fn answers_are_written_as_told() {
    assert!(answer(Reply::Accept).await.starts_with("HTTP/1.1 200"));
    assert!(answer(Reply::Status(418)).await.starts_with("HTTP/1.1 418"));
    let asked = answer(Reply::StatusWithRetryAfter(503, "7".into())).await;
    assert!(asked.starts_with("HTTP/1.1 503") && asked.contains("\r\nretry-after: 7\r\n"));
    let moved = answer(Reply::Redirect("/b".into())).await;
    assert!(moved.starts_with("HTTP/1.1 307") && moved.contains("\r\nlocation: /b\r\n"));
    let whole = answer(Reply::Answer {
        status: 201,
        headers: vec![("x".into(), "y".into())],
        body: Bytes::from_static(b"body"),
    });
    let whole = whole.await;
    assert_eq!(
        whole,
        "HTTP/1.1 201 \r\ncontent-length: 4\r\nx: y\r\n\r\nbody"
    );
    assert!(!answer(Reply::Garbage).await.starts_with("HTTP"));
    assert!(
        answer(Reply::AcceptAndClose)
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(answer(Reply::DropAfterReading).await, "");
    assert!(
        answer(Reply::BreakOffInBody)
            .await
            .contains("content-length: 1000")
    );
    let huge = answer(Reply::HugeBody(200_000)).await;
    assert!(huge.len() > 200_000 && huge.ends_with("xxx"));
}

#[tokio::test]
async fn what_is_reset_before_reading_is_reset() {
    let receiver = Receiver::start().await.unwrap();
    receiver.next([Reply::ResetBeforeReading]);
    let mut client = connect(&receiver).await;
    client.write_all(REQUEST).await.unwrap();
    let error = client.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let requests = receiver.requests();
    assert!(!requests[0].complete && requests[0].method.is_empty());
}

#[tokio::test]
async fn what_hangs_is_accepted_when_released_and_noticed_when_left() {
    let receiver = Receiver::start().await.unwrap();
    receiver.otherwise(Reply::Hang);
    let (mut stays, mut leaves) = (connect(&receiver).await, connect(&receiver).await);
    stays.write_all(REQUEST).await.unwrap();
    leaves.write_all(REQUEST).await.unwrap();
    receiver
        .wait_until(|_, seen| seen.hanging == 2)
        .await
        .unwrap();
    assert_eq!(receiver.seen().most_in_flight, 2);
    drop(leaves);
    receiver
        .wait_until(|_, seen| seen.abandoned == 1)
        .await
        .unwrap();
    receiver.release();
    let mut begin = [0; 12];
    stays.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    // Later ones hang again.
    stays.write_all(REQUEST).await.unwrap();
    receiver
        .wait_until(|_, seen| seen.hanging == 1)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_body_drips() {
    let dripped = answer(Reply::RespondSlowly {
        body: Bytes::from_static(b"abc"),
        every: Duration::ZERO,
    });
    // Whoever shuts down their side counts as gone, so that nothing may come after the head.
    assert!(dripped.await.starts_with("HTTP/1.1 200"));
    let receiver = Receiver::start().await.unwrap();
    receiver.next([Reply::RespondSlowly {
        body: Bytes::from_static(b"abc"),
        every: Duration::from_millis(1),
    }]);
    let mut client = connect(&receiver).await;
    client.write_all(REQUEST).await.unwrap();
    receiver
        .wait_until(|_, seen| seen.answered == 1)
        .await
        .unwrap();
    drop(receiver);
    assert!(rest(&mut client).await.ends_with("\r\n\r\nabc"));
}

#[tokio::test]
async fn rules_decide_where_nothing_is_queued() {
    let receiver = Receiver::start().await.unwrap();
    receiver.otherwise(Reply::Status(404));
    receiver.rule(|request| (request.path == "/a?b=c").then_some(Reply::Status(202)));
    receiver.next([Reply::Status(503)]);
    let mut client = connect(&receiver).await;
    let other = b"POST /other HTTP/1.1\r\ncontent-length: 0\r\n\r\n";
    client
        .write_all(&[REQUEST, REQUEST, other].concat())
        .await
        .unwrap();
    let requests = receiver.wait_for(3).await.unwrap();
    let replies: Vec<_> = requests.into_iter().map(|r| r.reply).collect();
    assert_eq!(replies, [503, 202, 404].map(Reply::Status));
}

#[tokio::test]
async fn one_that_only_counts_keeps_nothing() {
    let receiver = Receiver::start_counting().await.unwrap();
    let mut client = connect(&receiver).await;
    client
        .write_all(&[REQUEST, REQUEST].concat())
        .await
        .unwrap();
    assert!(receiver.wait_for(2).await.unwrap().is_empty());
    receiver
        .wait_until(|_, seen| seen.answered == 2)
        .await
        .unwrap();
}

#[tokio::test]
async fn dropped_it_closes_its_port_which_can_be_taken_again() {
    let receiver = Receiver::start().await.unwrap();
    let address = receiver.address();
    let mut client = connect(&receiver).await;
    client.write_all(REQUEST).await.unwrap();
    receiver
        .wait_until(|_, seen| seen.answered == 1)
        .await
        .unwrap();
    drop(receiver);
    assert!(rest(&mut client).await.starts_with("HTTP/1.1 200"));
    let again = Receiver::start_at(address, Keep::Everything).await.unwrap();
    let mut client = connect(&again).await;
    client.write_all(REQUEST).await.unwrap();
    again.wait_for(1).await.unwrap();
}
