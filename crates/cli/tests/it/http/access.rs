//! Who may what.

use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;

use crate::http::client::get;
use crate::http::reading::CHANGES;
use crate::http::serving::{Serving, changefeed, orders, out, token};

pub(crate) async fn a_revoked_token_opens_nothing_and_its_streams_end(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let token = token(&url, "read:orders");
    let serving = Serving::start(&url, &["--keep-alive", "100ms"]);
    let mut stream = get(CHANGES)
        .token(&token)
        .header("accept", "text/event-stream")
        .open(serving.at)
        .await;
    assert!(stream.block().await.is_some());
    let id = token.split('_').nth(1).unwrap();
    out(&url, &["token", "revoke", id]);
    while stream.block().await.is_some() {}
    eventually("nothing opens", || async {
        let answer = get(CHANGES).token(&token).send(serving.at).await;
        (answer.status == 401).then_some(())
    })
    .await;
    // That there was one is remembered: nobody gets in without.
    serving.get(CHANGES).await.problem(401);
    let again = changefeed(&url, &["token", "revoke", id]).output().unwrap();
    assert!(!again.status.success());
}

pub(crate) async fn without_tokens_nobody_else_is_served(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let refused = changefeed(&url, &["serve", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("there are no tokens") && said.contains("changefeed token create"));
}
