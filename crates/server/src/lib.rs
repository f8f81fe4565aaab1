//! Feeds, events and watches over HTTP: routes, wire types, access, streams, metrics.
//!
//! A handler is thin: it checks who asks, calls the library, and writes down the answer. What makes
//! thousands of waiting readers cheap is in `reads`, what keeps strangers out in `gate` and `access`,
//! and what the dashboard shows comes from the samples of `changefeed_engine::observe`.

mod access;
mod app;
mod complaints;
mod connections;
mod cors;
mod exposition;
mod extract;
mod feeds;
mod gate;
mod kept;
mod limits;
mod listen;
mod pages;
mod problem;
mod reads;
mod routes;
mod socket;
mod stream;
mod tls;
mod tokens;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use changefeed_core::{Error, Kind, Result};
use changefeed_engine::observe::Own;
use changefeed_engine::supervisor::Supervisor;
use tokio::net::TcpListener;
use tower_http::catch_panic::CatchPanicLayer;

pub use app::Options;
pub use tls::Certificate;
pub use tokens::new_token;

use app::App;
use problem::Problem;
use routes::{operating, status};

/// A server that listens already, but answers nobody yet.
pub struct Server {
    listener: TcpListener,
    tls: Option<Certificate>,
    router: Router,
    app: Arc<App>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Binds the address, if it may, to answer for the instance of this supervisor.
    pub async fn bind(instance: &Supervisor, options: Options) -> Result<Server> {
        // What says who may do what, and how it all is, does not queue behind requests.
        let (db, requests) = (instance.database(), instance.database_for_requests());
        let tokens = db.store().tokens().await?;
        if !options.is_loopback() && !tokens.iter().any(changefeed_core::AccessToken::is_valid) {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "there are no tokens, so everybody who reaches {} could do everything",
                    options.listen
                ),
            )
            .advise(
                "create one with `changefeed token create NAME --scope read`, or listen on 127.0.0.1",
            ));
        }
        cors::check(&options.cors_origins)?;
        let tls = match &options.tls {
            Some((certificate, key)) => Some(Certificate::read(certificate, key)?),
            None => None,
        };
        let listener = listen::bind(options.listen).await?;
        let (api, description) = routes::api();
        let openapi = description
            .to_json()
            .map_err(|e| Error::new(Kind::Database, "the API cannot be described").caused_by(e))?;
        let always = !options.is_loopback();
        let variables = instance.options().webhooks.variables.clone();
        let app = Arc::new(App {
            feeds: feeds::Feeds::new(requests.clone()),
            reads: reads::Reads::new(requests.clone()),
            access: access::Access::new(db.clone(), always, tokens),
            limits: limits::Limits::new(options.max_requests, options.room_to_wait()),
            connections: connections::Connections::new(options.max_connections),
            samples: Arc::default(),
            complaints: complaints::Complaints::default(),
            schema: operating::schema(db.clone()),
            findings: status::findings_of(db.clone(), variables),
            loops: db,
            instance: instance.options().name.clone(),
            health: instance.health().clone(),
            meters: instance.meters().clone(),
            shutdown: instance.stop().clone(),
            openapi: openapi.into(),
            options,
            db: requests,
        });
        let router = routed(&app, api);
        Ok(Server {
            listener,
            tls,
            router,
            app,
        })
    }

    /// Where it listens: the port is a real one even if any was asked for.
    pub fn address(&self) -> SocketAddr {
        self.listener
            .local_addr()
            .unwrap_or(self.app.options.listen)
    }

    /// How a browser reaches it.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address())
    }

    /// Its routes, for requests that come by another way than its own socket.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Its certificate, which can be read again while it runs.
    pub fn certificate(&self) -> Option<Certificate> {
        self.tls.clone()
    }

    /// Serves until told to stop.
    pub async fn run(self) {
        let app = self.app;
        let shutdown = app.shutdown.clone();
        let own = Own {
            name: app.instance.clone(),
            meters: app.meters.clone(),
        };
        let sampling = app.samples.run(app.loops.clone(), own, shutdown.clone());
        let serving = listen::serve(
            self.listener,
            self.tls,
            self.router,
            app.connections.clone(),
            app.options.grace,
            shutdown.clone(),
        );
        let complaining = app.complaints.run(shutdown);
        tokio::join!(sampling, serving, complaining);
    }
}

fn routed(app: &Arc<App>, api: Router<Arc<App>>) -> Router {
    let guarded = routes::guarded(api)
        .method_not_allowed_fallback(routes::no_such_method)
        .layer(middleware::from_fn_with_state(app.clone(), gate::identify))
        // Outermost, so that its limits also hold while the database is asked for the tokens.
        .layer(middleware::from_fn_with_state(app.clone(), limits::admit));
    let watched =
        routes::watched().layer(middleware::from_fn_with_state(app.clone(), gate::identify));
    routes::open()
        .merge(watched)
        .merge(guarded)
        .fallback(routes::nowhere)
        .method_not_allowed_fallback(routes::no_such_method)
        .layer(DefaultBodyLimit::max(app.options.max_body))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app.clone(), gate::around))
        .with_state(app.clone())
}

/// A panic is our mistake; it must not take the others down.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a handler panicked");
    Problem::new(
        axum::http::StatusCode::INTERNAL_SERVER_ERROR,
        "database",
        "this request broke down; the log says more",
    )
    .into_response()
}
