//! Redis Streams.

use ::redis::{Client, Value, cmd, from_redis_value};
use bytes::Bytes;
use changefeed_core::{Cursor, Ulid};
use changefeed_engine::sinks::destination::{Appended, Destination, Held};
use changefeed_engine::sinks::redis::Redis;

use super::servers::{self, Server};
use super::{lane, message, messages, numbers, put, stands_at};

fn sink(server: &Server) -> Redis {
    Redis::connect(&format!("redis://127.0.0.1:{}/orders", server.port)).unwrap()
}

/// The bare client. It would wait for half a second only, which a loaded machine exceeds.
pub(super) async fn connection(port: u16) -> ::redis::aio::MultiplexedConnection {
    let client = Client::open(format!("redis://127.0.0.1:{port}/0")).unwrap();
    let config = ::redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(super::DEADLINE))
        .set_response_timeout(Some(super::DEADLINE));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.unwrap()
}

async fn ask(server: &Server, words: &[&str]) -> Value {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    command
        .query_async(&mut connection(server.port).await)
        .await
        .unwrap()
}

/// An id, and fields with their values.
type Entry = (String, Vec<(String, Vec<u8>)>);

/// Reads a whole stream with the bare client.
pub(super) async fn read(port: u16, stream: &str) -> Vec<(i64, Bytes)> {
    let mut connection = connection(port).await;
    let (mut found, mut from) = (Vec::new(), "-".to_owned());
    loop {
        let mut page = cmd("XRANGE");
        page.arg(stream).arg(&from).arg("+").arg("COUNT").arg(5000);
        let page: Vec<Entry> = page.query_async(&mut connection).await.unwrap();
        let Some((last, _)) = page.last() else {
            return found;
        };
        from = format!("({last}");
        for (id, fields) in page {
            let number = id.strip_suffix("-0").unwrap().parse().unwrap();
            let (_, body) = fields.into_iter().find(|(name, _)| name == "body").unwrap();
            found.push((number, Bytes::from(body)));
        }
    }
}

#[tokio::test]
async fn appends_and_resumes() {
    let server = servers::redis(&[]);
    super::appends_and_resumes(&sink(&server), &sink(&server)).await;
    let expected: Vec<i64> = (1..=1006).chain([2000, 3000, 3001]).collect();
    assert_eq!(numbers(&read(server.port, "orders:0").await), expected);
    assert_eq!(numbers(&read(server.port, "orders:1").await), [1, 2, 3]);
}

#[tokio::test]
async fn a_zombie_writes_nothing() {
    let server = servers::redis(&[]);
    super::a_zombie_writes_nothing(&sink(&server), &sink(&server)).await;
    let expected: Vec<i64> = (1..=10).collect();
    assert_eq!(numbers(&read(server.port, "orders:0").await), expected);
}

#[tokio::test]
async fn a_value_that_is_too_large_is_refused() {
    let server = servers::redis(&["--proto-max-bulk-len", "1mb"]);
    super::a_message_that_is_too_large(&sink(&server), 2 << 20).await;
    assert_eq!(
        numbers(&read(server.port, "orders:0").await),
        [1, 2, 3, 5, 6]
    );
}

#[tokio::test]
async fn a_crash_is_survived() {
    let mut server = servers::redis(&["--appendfsync", "always"]);
    let (sink, lane) = (sink(&server), lane(0, 0));
    let held = put(&sink, &lane, Held::Nothing, &messages(&lane, 1..=500)).await;
    server.kill();
    let batch = messages(&lane, 501..=900);
    let away = sink.append(&lane, held, &batch).await;
    assert!(matches!(away, Appended::Unavailable(_)), "{away:?}");
    assert!(sink.resume(&lane).await.is_err());
    server.restart();
    assert_eq!(stands_at(&sink, &lane).await, 500);
    put(&sink, &lane, held, &batch).await;
    assert_eq!(
        numbers(&read(server.port, "orders:0").await),
        (1..=900).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn positions_survive_trimming() {
    let server = servers::redis(&[]);
    let url = format!(
        "redis://127.0.0.1:{}/0?stream=orders&maxlen=1000",
        server.port
    );
    let (sink, lane) = (Redis::connect(&url).unwrap(), lane(0, 0));
    let mut held = Held::Nothing;
    for begin in (0..5000).step_by(500) {
        held = put(
            &sink,
            &lane,
            held,
            &messages(&lane, begin + 1..=begin + 500),
        )
        .await;
    }
    let kept = numbers(&read(server.port, "orders:0").await);
    assert!((1000..2000).contains(&kept.len()), "{}", kept.len());
    assert_eq!(kept, (5001 - kept.len() as i64..=5000).collect::<Vec<_>>());
    ask(&server, &["XTRIM", "orders:0", "MAXLEN", "0"]).await;
    assert_eq!(sink.resume(&lane).await, Ok(held));
    put(&sink, &lane, held, &messages(&lane, [5001])).await;
    assert_eq!(numbers(&read(server.port, "orders:0").await), [5001]);
}

#[tokio::test]
async fn a_group_may_be_there_before_the_first_entry() {
    let server = servers::redis(&[]);
    ask(
        &server,
        &["XGROUP", "CREATE", "orders:0", "readers", "$", "MKSTREAM"],
    )
    .await;
    super::appends_and_resumes(&sink(&server), &sink(&server)).await;
}

#[tokio::test]
async fn a_full_or_readonly_server_is_waited_for() {
    let server = servers::redis(&[]);
    let (sink, lane) = (sink(&server), lane(0, 0));
    let held = put(&sink, &lane, Held::Nothing, &messages(&lane, 1..=3)).await;
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let full = sink.append(&lane, held, &messages(&lane, 4..=9)).await;
    assert!(
        matches!(&full, Appended::Unavailable(why) if why.contains("memory")),
        "{full:?}"
    );
    assert_eq!(sink.resume(&lane).await, Ok(held));
    ask(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let readonly = sink.append(&lane, held, &messages(&lane, 4..=9)).await;
    assert!(matches!(readonly, Appended::Unavailable(_)), "{readonly:?}");
    ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(sink.resume(&lane).await, Ok(held));
    put(&sink, &lane, held, &messages(&lane, 4..=9)).await;
    assert_eq!(
        numbers(&read(server.port, "orders:0").await),
        (1..=9).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_replay_has_a_stream_of_its_own() {
    let server = servers::redis(&[]);
    let sink = sink(&server);
    put(
        &sink,
        &lane(0, 0),
        Held::Nothing,
        &messages(&lane(0, 0), 1..=5),
    )
    .await;
    let again = lane(0, 1);
    assert_eq!(sink.resume(&again).await, Ok(Held::Nothing));
    put(&sink, &again, Held::Nothing, &messages(&again, 1..=3)).await;
    assert_eq!(stands_at(&sink, &lane(0, 0)).await, 5);
    assert_eq!(numbers(&read(server.port, "orders:0:1").await), [1, 2, 3]);
}

#[tokio::test]
async fn ulids_are_ids_too() {
    let server = servers::redis(&[]);
    let (sink, lane) = (sink(&server), lane(0, 0));
    let first: Ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
    let ulids: Vec<Ulid> = [(0, 0), (0, 1), (1, 0), (1 << 16, u64::MAX - first.low())]
        .map(|(high, low)| Ulid::from_parts(first.high() + high, first.low() + low))
        .to_vec();
    let mut batch = messages(&lane, 1..=4);
    for (message, ulid) in batch.iter_mut().zip(&ulids) {
        message.cursor = Cursor::Ulid(*ulid);
    }
    let held = put(&sink, &lane, Held::Nothing, &batch).await;
    assert_eq!(sink.resume(&lane).await, Ok(held));
    let conflict = sink.append(&lane, Held::Nothing, &batch).await;
    assert!(matches!(conflict, Appended::Conflict), "{conflict:?}");
    let entries: Vec<Value> =
        from_redis_value(ask(&server, &["XRANGE", "orders:0", "-", "+"]).await).unwrap();
    assert_eq!(entries.len(), 4);
}

#[tokio::test]
async fn entries_of_others_are_noticed() {
    let server = servers::redis(&[]);
    let (sink, lane) = (sink(&server), lane(0, 0));
    ask(&server, &["XADD", "orders:0", "*", "other", "1"]).await;
    let said = sink.resume(&lane).await.unwrap_err();
    assert!(said.contains("not written by changefeed"), "{said}");
    let conflict = sink
        .append(&lane, Held::Nothing, &[message(&lane, 1)])
        .await;
    assert!(matches!(conflict, Appended::Conflict), "{conflict:?}");
    ask(&server, &["SET", "orders:1", "text"]).await;
    assert!(sink.resume(&super::lane(1, 0)).await.is_err());
}
