//! Connections: accepted, encrypted where that is wanted, and ended in time.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use changefeed_core::{Error, Kind, Result};
use changefeed_engine::CancellationToken;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::connections::{Asked, Connections, Place};
use crate::problem::Problem;
use crate::socket::{Socket, last_words};
use crate::tls::Certificate;

/// How long a client may take to send the header of a request, to begin the next one, and to agree on
/// TLS. There is one rule for all of them: a connection without a request under way ends after this time.
const IDLE: Duration = Duration::from_secs(10);
/// The same when the server is being stopped.
const PARTING: Duration = Duration::from_millis(500);
/// How long a connection that has to make room is looked at for a request.
const GLANCE: Duration = Duration::from_millis(2);
/// After this time without a sign that what was sent has arrived, a connection is over.
const SILENCE: Duration = Duration::from_secs(60);
/// The largest header of a request.
pub(crate) const LARGEST_HEADER: usize = 64 * 1024;
/// Refusals that are being sent at the same time; beyond that connections are closed without a word.
const REFUSALS: usize = 16;
/// How often the log tells that connections were refused.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Binds an address.
pub(crate) async fn bind(address: std::net::SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| {
        let advice = match e.kind() {
            io::ErrorKind::AddrInUse => "another program listens there; use --listen ADDRESS:PORT",
            io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; use another",
            _ => "use --listen with an address of this machine",
        };
        Error::new(
            Kind::Unavailable,
            format!("the server cannot listen on {address}"),
        )
        .advise(advice)
        .caused_by(e)
    })
}

/// Serves until told to stop; then what is under way gets `grace`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Certificate>,
    router: Router,
    connections: Arc<Connections>,
    grace: Duration,
    shutdown: CancellationToken,
) {
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let mut told = Told::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => match connections.place().await {
                Some(place) => {
                    prepare(&stream);
                    let serving = Serving {
                        tls: tls.clone(),
                        router: router.clone(),
                        place,
                        stopping: shutdown.clone(),
                    };
                    tokio::spawn(serving.run(stream));
                }
                None => {
                    told.tell("all connections are in use, and new ones are refused");
                    // A client of HTTPS could not read it.
                    if tls.is_none()
                        && let Ok(permit) = refusals.clone().try_acquire_owned()
                    {
                        tokio::spawn(async move {
                            refuse(stream).await;
                            drop(permit);
                        });
                    }
                }
            },
            // The client has gone again; the next one may be there already.
            Err(error) if is_clients(&error) => {}
            Err(error) => {
                told.tell(&format!("connections cannot be accepted: {error}"));
                // Out of files, most likely. An idle connection makes room for one that asks, and the
                // pause keeps a listener that fails at once from taking a whole processor.
                connections.make_room();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(grace, connections.closed())
        .await
        .is_err()
    {
        tracing::warn!("requests are still under way after {grace:?}; they are cut off");
    }
}

fn is_clients(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionAborted | K::ConnectionReset | K::ConnectionRefused | K::Interrupted
    )
}

/// Complaints about connections, once in a while.
#[derive(Default)]
struct Told {
    last: Option<Instant>,
    untold: u64,
}

impl Told {
    fn tell(&mut self, what: &str) {
        self.untold += 1;
        if self.last.is_none_or(|last| last.elapsed() >= TELL_EVERY) {
            tracing::warn!(times = self.untold, "{what}");
            *self = Told {
                last: Some(Instant::now()),
                untold: 0,
            };
        }
    }
}

/// Tells a client that there is no room. It reads on for a moment: closing a connection whose bytes were
/// not read would take the answer away from the client.
async fn refuse(mut stream: TcpStream) {
    let problem = Problem::overloaded("all connections of this server are in use")
        .advise("ask again later, or allow the server more open files");
    let talk = async {
        stream.write_all(&last_words(&problem)).await?;
        stream.shutdown().await?;
        let mut unread = [0; 1024];
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), talk).await;
}

fn prepare(stream: &TcpStream) {
    // A small answer must not wait for a full packet.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(SILENCE));
    #[cfg(not(target_os = "linux"))]
    let _ = SILENCE;
}

/// A connection that is served.
struct Serving {
    tls: Option<Certificate>,
    router: Router,
    place: Place,
    stopping: CancellationToken,
}

impl Serving {
    /// However a connection ends, that is the client's business: there is nobody to tell.
    async fn run(self, stream: TcpStream) {
        match &self.tls {
            None => self.speak(stream).await,
            Some(tls) => {
                let handshake = tls.acceptor().accept(stream);
                let agreed = tokio::select! {
                    agreed = tokio::time::timeout(IDLE, handshake) => agreed,
                    () = self.stopping.cancelled() => return,
                    () = self.place.life.cut.cancelled() => return,
                };
                if let Ok(Ok(stream)) = agreed {
                    self.speak(stream).await;
                }
            }
        }
    }

    async fn speak<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(&self, stream: S) {
        let life = &self.place.life;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            // Ours is for all versions, and holds before the first byte as well.
            .header_read_timeout(None)
            // Thousands of them wait with empty hands.
            .max_buf_size(LARGEST_HEADER);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            // A larger one is refused by the gate, which says why.
            .max_header_list_size(4 * LARGEST_HEADER as u32)
            .max_concurrent_streams(100);
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            answered(self.router.clone(), life.asked(), request)
        });
        let socket = TokioIo::new(Socket::new(stream, life.clone()));
        let mut connection = pin!(builder.serve_connection(socket, service));
        let limit = tokio::select! {
            _ = connection.as_mut() => return,
            () = life.idle_for(IDLE) => IDLE,
            () = self.stopping.cancelled() => PARTING,
            () = life.cut.cancelled() => {
                // A request that has just come is answered; then another connection makes room.
                let glance = tokio::time::timeout(GLANCE, connection.as_mut()).await;
                if glance.is_ok() || life.is_stalled() {
                    return;
                }
                Duration::ZERO
            }
        };
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            _ = connection => {}
            () = life.idle_for(limit) => {}
        }
    }
}

async fn answered(
    router: Router,
    asked: Asked,
    request: Request<Incoming>,
) -> std::result::Result<Response<Answered>, std::convert::Infallible> {
    let response = router.oneshot(request).await?;
    Ok(response.map(|body| Answered {
        body,
        _asked: asked,
    }))
}

/// The body of an answer: its request is under way until it has ended.
struct Answered {
    body: Body,
    _asked: Asked,
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
