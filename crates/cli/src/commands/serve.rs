//! `changefeed serve`

pub(crate) mod files;

use std::time::Duration;

use changefeed::server::{Certificate, Options, Server};
use changefeed::{
    CancellationToken, Changefeed, Error, InstanceOptions, Kind, Result, ServeOptions, Service,
    require_current, unique_name,
};

use crate::args::{Http, Serve};
use crate::connect;
use crate::output::Out;
use crate::{demo, signals};

/// What may be left to do when the last delivery is over.
const LAST_WORDS: Duration = Duration::from_secs(15);

pub(crate) async fn run(
    database: &str,
    database_given: bool,
    args: Serve,
    out: &mut Out,
) -> Result<()> {
    let shutdown = signals::shutdown()?;
    if args.demo {
        let database = database_given.then_some(database);
        return demo::run(database, args, out, shutdown).await;
    }
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let deadline = args.deliver.grace + LAST_WORDS;
    // Before we announce that we serve, and requests come.
    let hangups = signals::Hangups::new()?;
    let service = prepare(&db, &args, &shutdown).await?;
    match service.server().map(Server::url) {
        Some(url) => out.say(format!("serving at {url}; Ctrl-C stops"))?,
        None => out.say("serving; Ctrl-C stops")?,
    }
    let serving = run_until(service, hangups, &shutdown);
    tokio::select! {
        ended = serving => ended,
        () = too_late(&shutdown, deadline) => Err(Error::new(
            Kind::Unavailable,
            format!("it did not stop within {}", humantime::format_duration(deadline)),
        )),
    }?;
    out.say("stopped")
}

async fn too_late(shutdown: &CancellationToken, deadline: Duration) {
    shutdown.cancelled().await;
    tokio::time::sleep(deadline).await;
}

/// An instance that listens already, if it is to answer requests, but does nothing yet.
pub(crate) async fn prepare(
    db: &Changefeed,
    args: &Serve,
    shutdown: &CancellationToken,
) -> Result<Service> {
    let name = unique_name();
    let mut instance = InstanceOptions::new(&name);
    instance.roles = args.roles();
    instance.dispatch = args.deliver.dispatch(&name);
    instance.webhooks = args.deliver.webhooks()?;
    instance.allow_exec = args.allow_exec;
    instance.allow_files.clone_from(&args.allow_files);
    let mut options = ServeOptions::new(db);
    options.instance = instance;
    options.http = Some(Options {
        allowed_variables: args.deliver.allowed()?,
        max_connections: files::room_for_connections(args.deliver.concurrency as usize),
        ..http_options(&args.http)
    });
    Service::prepare(options, shutdown).await
}

/// Serves until told to stop, and reads the certificate again at every SIGHUP.
pub(crate) async fn run_until(
    service: Service,
    hangups: signals::Hangups,
    shutdown: &CancellationToken,
) -> Result<()> {
    let certificate = service.server().and_then(Server::certificate);
    let stop = shutdown.child_token();
    let (ended, ()) = tokio::join!(
        async {
            let ended = service.run().await;
            stop.cancel();
            ended
        },
        hangups.each(stop.clone(), || reload(certificate.as_ref())),
    );
    ended
}

/// SIGHUP: reads the certificate again. One that cannot be read must not end what works.
fn reload(certificate: Option<&Certificate>) {
    match certificate.map(Certificate::reload) {
        None => tracing::info!("SIGHUP: there is no certificate to read again"),
        Some(Ok(())) => tracing::info!("SIGHUP: the certificate was read again"),
        Some(Err(error)) => tracing::error!(
            error = %error, advice = error.advice(),
            "SIGHUP: the certificate stays what it was"
        ),
    }
}

/// What was typed about HTTP.
fn http_options(http: &Http) -> Options {
    Options {
        tls: http.tls_cert.clone().zip(http.tls_key.clone()),
        allow_hosts: http.allow_host.clone(),
        cors_origins: http.cors_origin.clone(),
        max_body: http.max_body,
        max_requests: http.max_requests as usize,
        max_waiting: http.max_waiting as usize,
        request_timeout: http.request_timeout,
        keep_alive: http.keep_alive,
        ..Options::new(http.listen)
    }
}
