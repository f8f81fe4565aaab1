//! S3, and what speaks its protocol.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use changefeed_core::{Error, Result};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::client::{
    HttpClient, HttpConnector as ConnectHttp, HttpError, HttpErrorKind, HttpRequest,
    HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt, PutMode, RetryConfig};
use tokio::time::timeout;

use super::{Listed, ObjectStore};
use crate::sinks::place::BrokerUrl;
use crate::sinks::webhook;

/// How many names a store tells at once.
const PAGE: usize = 1000;

/// A place in a bucket.
#[derive(Debug)]
pub struct S3 {
    store: AmazonS3,
    prefix: String,
    patience: Duration,
}

impl S3 {
    /// A place at `s3://[KEY:SECRET@]BUCKET[/PREFIX][?region=R&endpoint=URL]`. What is not said is taken from the
    /// environment as by other programs: `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL` and the like, and roles of
    /// instances and containers.
    pub fn new(url: &str, patience: Duration) -> Result<Self> {
        let mut url = BrokerUrl::parse(url)?;
        if url.scheme != "s3" {
            return Err(Error::invalid("the URL of an S3 sink begins with s3://"));
        }
        let [bucket] = url.hosts.as_slice() else {
            return Err(Error::invalid("an S3 sink has one bucket"));
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_http_connector(Connector::new()?)
            .with_retry(RetryConfig {
                // The loop that pushes tries again, and asks first what arrived.
                max_retries: 1,
                retry_timeout: patience,
                ..RetryConfig::default()
            });
        match (&url.user, &url.password) {
            (Some(key), Some(secret)) => {
                builder = builder
                    .with_access_key_id(key)
                    .with_secret_access_key(secret);
            }
            (None, None) => {}
            _ => {
                return Err(Error::invalid(
                    "an S3 sink has both an access key and a secret key, or neither",
                )
                .advise("write s3://KEY:SECRET@BUCKET/PREFIX, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
            }
        }
        if let Some(region) = url.take("region") {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = url.take("endpoint") {
            if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
                return Err(Error::invalid(
                    "the endpoint of an S3 sink begins with http:// or https://",
                ));
            }
            builder = builder
                .with_allow_http(endpoint.starts_with("http://"))
                .with_endpoint(endpoint);
        }
        url.take("as");
        url.nothing_else("as, region, endpoint")?;
        let store = builder
            .build()
            .map_err(|e| Error::invalid(format!("the S3 sink cannot be set up: {e}")))?;
        Ok(S3 {
            store,
            prefix: url.path.clone(),
            patience,
        })
    }

    fn path(&self, folder: &str, name: Option<&str>) -> Path {
        let parts = [self.prefix.as_str(), folder, name.unwrap_or_default()];
        Path::from_iter(
            parts
                .iter()
                .flat_map(|part| part.split('/'))
                .filter(|part| !part.is_empty()),
        )
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<object_store::Result<T>, String> {
        let limit = changefeed_core::format_span(self.patience);
        let done = timeout(self.patience, work).await;
        done.map_err(|_| format!("S3 has not answered within {limit}"))
    }
}

fn told(error: object_store::Error) -> String {
    use std::error::Error;
    let mut text = format!("S3 says: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[async_trait]
impl ObjectStore for S3 {
    async fn list(&self, folder: &str, after: Option<&str>) -> Result<Listed, String> {
        let prefix = self.path(folder, None);
        let listing = match after {
            Some(after) => self
                .store
                .list_with_offset(Some(&prefix), &self.path(folder, Some(after))),
            None => self.store.list(Some(&prefix)),
        };
        // One more than a page would fetch another one.
        let found: Vec<_> = self
            .within(async { Ok(listing.take(PAGE).collect().await) })
            .await?
            .map_err(told)?;
        let mut names = Vec::with_capacity(found.len());
        for meta in found {
            let location = meta.map_err(told)?.location;
            // Deeper folders are not ours.
            if location.parts_count() == prefix.parts_count() + 1 {
                names.push(location.filename().unwrap_or_default().to_owned());
            }
        }
        let more = names.len() >= PAGE;
        Ok(Listed { names, more })
    }

    async fn get(&self, folder: &str, name: &str) -> Result<Bytes, String> {
        let path = self.path(folder, Some(name));
        let read = async { self.store.get(&path).await?.bytes().await };
        self.within(read).await?.map_err(told)
    }

    async fn create(&self, folder: &str, name: &str, content: Bytes) -> Result<bool, String> {
        let path = self.path(folder, Some(name));
        let put = self
            .store
            .put_opts(&path, content.into(), PutMode::Create.into());
        match self.within(put).await? {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(told(error)),
        }
    }
}

/// Connections by the stack that webhooks have, with its roots.
#[derive(Debug, Clone)]
struct Connector {
    client: Client<HttpsConnector<HttpConnector>, HttpRequestBody>,
}

impl Connector {
    fn new() -> Result<Self> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(Duration::from_secs(5)));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(webhook::tls(&[])?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Ok(Connector {
            client: Client::builder(TokioExecutor::new()).build(https),
        })
    }
}

impl ConnectHttp for Connector {
    fn connect(&self, _: &object_store::ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let answer = self.client.request(request).await.map_err(|e| {
            // What was sent may have arrived, unless there was no connection.
            let kind = if e.is_connect() {
                HttpErrorKind::Connect
            } else {
                HttpErrorKind::Interrupted
            };
            HttpError::new(kind, e)
        })?;
        let (parts, body) = answer.into_parts();
        let body = body.map_err(|e| HttpError::new(HttpErrorKind::Interrupted, e));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}
