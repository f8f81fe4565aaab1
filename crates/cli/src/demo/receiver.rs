//! Whoever the shop's events and batches are posted to: a receiver that fails now and then, and that
//! refuses some orders until somebody asks it once more.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use changefeed::{Error, Kind, Result};
use changefeed_receiver::{Keep, Receiver, Reply, Request};
use serde_json::Value;

/// How often an order that is refused is refused. With as many attempts it is given up by itself, and
/// accepted when a person has it delivered again.
pub(super) const REFUSALS: u32 = 3;
/// One of this many requests finds the receiver busy.
const BUSY_EVERY: u64 = 9;
/// Orders worth more than this have no carrier.
const TOO_DEAR: i64 = 18_800;
/// One of this many orders has an address that mail does not reach.
const UNREACHABLE: i64 = 13;

pub(super) async fn start() -> Result<Receiver> {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    // It runs for as long as somebody likes, so it keeps nothing of what arrives.
    let receiver = Receiver::start_at(address, Keep::Counts)
        .await
        .map_err(|e| {
            Error::new(Kind::Unavailable, "the demo's receiver cannot listen").caused_by(e)
        })?;
    let moods = Moods::default();
    receiver.rule(move |request| Some(moods.reply(request)));
    Ok(receiver)
}

#[derive(Default)]
struct Moods {
    requests: AtomicU64,
    refused: Mutex<BTreeMap<String, u32>>,
}

impl Moods {
    fn reply(&self, request: &Request) -> Reply {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(batch) = body.as_array() {
            return self.mail(batch);
        }
        let order = &body["event"]["data"]["new"];
        if order["cents"].as_i64().is_some_and(|c| c > TOO_DEAR)
            && order["status"] == "placed"
            && self.refuses(&format!("ship {}", order["id"]))
        {
            return answer(422, "no carrier takes a parcel of this value");
        }
        match number % BUSY_EVERY {
            3 => answer(503, "the warehouse is busy"),
            5 => Reply::AcceptAfter(Duration::from_millis(40 + number % 7 * 60)),
            _ => answer(200, "on its way"),
        }
    }

    fn mail(&self, batch: &[Value]) -> Reply {
        let lost = batch
            .iter()
            .filter_map(|change| change["Item"]["id"].as_i64())
            .find(|id| id % UNREACHABLE == 0 && self.refuses(&format!("mail {id}")));
        match lost {
            Some(id) => answer(
                422,
                &format!("the address of order {id} cannot be delivered to"),
            ),
            None => answer(200, "sent"),
        }
    }

    /// Counts, and says whether it is still too early to give in.
    fn refuses(&self, what: &str) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let times = refused.entry(what.to_owned()).or_default();
        *times += 1;
        *times <= REFUSALS
    }
}

fn answer(status: u16, message: &str) -> Reply {
    Reply::Answer {
        status,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: serde_json::json!({ "message": message }).to_string().into(),
    }
}
