//! A shop with a table of orders and its feed of two shards, and requests to its routes.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http;
use changefeed_core::{AccessStore, SchemaStore};
use changefeed_engine::supervisor::{InstanceOptions, Supervisor};
use changefeed_engine::{CancellationToken, Changefeed};
use changefeed_server::{Options, Server, new_token};
use changefeed_sqlite::SqliteStore;
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const CHANGES: &str = "/api/feeds/orders/shards/1/changes";

/// The address that the server believes to listen at; nobody connects to it.
pub(crate) const AT: &str = "127.0.0.1:0";

pub(crate) struct Shop {
    pub(crate) store: Arc<SqliteStore>,
    _folder: tempfile::TempDir,
}

impl Shop {
    pub(crate) async fn new() -> Shop {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("shop.db"))
            .await
            .unwrap();
        store.migrate().await.unwrap();
        let app = store.connection().unwrap();
        app.execute_batch(
            "create table orders (id integer primary key, customer integer, note text)",
        )
        .unwrap();
        let shop = Shop {
            store: Arc::new(store),
            _folder: folder,
        };
        let feed = json!({
            "name": "orders", "id": 7, "shards": 2,
            "source": {"kind": "captured", "table": "orders", "shard_by": "customer"}
        });
        let open = shop.serve(|_| ()).await;
        request("POST", "/api/feeds")
            .json(feed)
            .send(&open)
            .await
            .json(201);
        shop
    }

    /// The routes of an instance with these options, which runs no loops.
    pub(crate) async fn serve(&self, set: impl FnOnce(&mut Options)) -> Router {
        let db = Changefeed::new(self.store.clone());
        let stop = CancellationToken::new();
        let instance = Supervisor::new(&db, InstanceOptions::default(), &stop);
        let mut options = Options::new(AT.parse().unwrap());
        set(&mut options);
        let server = Server::bind(&instance, options).await.unwrap();
        server.router()
    }

    /// A token of this scope.
    pub(crate) async fn token(&self, scope: &str) -> String {
        let (new, secret) = new_token("t", vec![scope.parse().unwrap()], None).unwrap();
        self.store.create_token(&new).await.unwrap();
        secret
    }
}

/// A request, before it is sent.
#[derive(Clone)]
pub(crate) struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

pub(crate) fn get(path: impl Into<String>) -> Request {
    request("GET", path)
}

pub(crate) fn request(method: &str, path: impl Into<String>) -> Request {
    Request {
        method: method.to_owned(),
        path: path.into(),
        headers: Vec::new(),
        body: String::new(),
    }
}

impl Request {
    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    pub(crate) fn json(self, body: Value) -> Self {
        self.text(body.to_string())
            .header("content-type", "application/json")
    }

    pub(crate) fn text(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(&self, to: &Router) -> Answer {
        let mut request = http::Request::builder()
            .method(&*self.method)
            .uri(&self.path);
        if !self.headers.iter().any(|(name, _)| name == "host") {
            request = request.header("host", AT);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(self.body.clone())).unwrap();
        let (head, body) = to.clone().oneshot(request).await.unwrap().into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: http::HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The body as JSON, of an answer with this status.
    pub(crate) fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {}", self.body))
    }

    /// The one sentence of an error with this status.
    pub(crate) fn problem(&self, status: u16) -> String {
        let json = self.json(status);
        let kind = self.header("content-type");
        assert_eq!(kind, Some("application/problem+json"));
        assert_eq!(json["status"], status);
        let detail = json["detail"].as_str().unwrap().to_owned();
        assert!(!detail.is_empty() && !detail.contains('\n'), "{detail}");
        detail
    }
}
