//! Readers of a database that was restored from a backup.

use changefeed_core::FeedStore;

use crate::stage::{CHANGES, Shop, get, request};

#[tokio::test]
async fn a_reader_of_before_a_recovery_gets_410() {
    let shop = Shop::new().await;
    let server = shop.serve(|_| ()).await;
    let page = get(CHANGES).send(&server).await;
    let life = page.header("changefeed-incarnation").unwrap().to_owned();
    assert_eq!(page.json(200)["incarnation"], *life);
    let asked = format!("{CHANGES}?incarnation={life}");
    get(&asked).send(&server).await.json(200);

    let next = shop.store.recover().await.unwrap();
    let told = get(&asked).send(&server).await.json(410);
    assert_eq!(told["kind"], "recovered");
    let sentence = told["detail"].as_str().unwrap();
    assert!(sentence.contains("was recovered at"), "{sentence}");
    for wait in ["", "&wait=1"] {
        let path = format!("{CHANGES}?after=last{wait}");
        let by_header = request("GET", &path).header("changefeed-incarnation", &life);
        by_header.send(&server).await.json(410);
    }
    for path in [CHANGES, "/api/feeds/orders/changes"] {
        let stream =
            get(format!("{path}?incarnation={life}")).header("accept", "text/event-stream");
        stream.send(&server).await.json(410);
    }
    let now = get(CHANGES).send(&server).await.json(200);
    assert_eq!(now["incarnation"], next.to_string());
    let bad = get(format!("{CHANGES}?incarnation=2")).send(&server).await;
    assert!(
        bad.json(400)["detail"]
            .as_str()
            .unwrap()
            .contains("no incarnation")
    );
}
