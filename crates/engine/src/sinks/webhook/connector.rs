//! How connections are made: names resolved, addresses judged, TLS with the system's roots.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{error, io, vec};

use changefeed_core::{Error, Kind, Result};
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower_service::Service;

use super::failure::NoConnection;
use super::guard;
use super::wire::Noted;

type BoxError = Box<dyn error::Error + Send + Sync>;
type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Which addresses webhooks may have. Judged is the address that is really connected to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// Those of the public internet.
    Public,
    /// Private and loopback ones too, but none that is link-local or of a cloud's metadata service.
    #[default]
    Private,
    /// Every address.
    Everything,
}

impl Reach {
    fn check(self, address: IpAddr) -> Result<(), NoConnection> {
        let refusal = match self {
            Reach::Public => guard::refusal(address),
            Reach::Private => guard::link_local(address),
            Reach::Everything => None,
        };
        refusal.map_or(Ok(()), |why| Err(NoConnection::Refused(address, why)))
    }
}

/// Makes connections.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    https: HttpsConnector<HttpConnector<Resolver>>,
    reach: Reach,
    limit: Duration,
}

impl Connector {
    pub(super) fn new(
        reach: Reach,
        limit: Duration,
        roots: &[CertificateDer<'static>],
    ) -> Result<Self> {
        let mut http = HttpConnector::new_with_resolver(Resolver { reach });
        http.enforce_http(false);
        http.set_nodelay(true);
        // A peer that vanished is noticed while a long answer is waited for.
        http.set_keepalive(Some(Duration::from_secs(30)));
        Ok(Connector {
            https: HttpsConnector::from((http, tls(roots)?)),
            reach,
            limit,
        })
    }
}

/// TLS with the roots that the system trusts, and these.
pub(in crate::sinks) fn tls(more: &[CertificateDer<'static>]) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for root in more {
        roots
            .add(root.clone())
            .map_err(|e| Error::invalid("a root certificate cannot be read").caused_by(e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::new(Kind::Unavailable, "TLS cannot be set up").caused_by(e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Noted<MaybeHttpsStream<TokioIo<TcpStream>>>>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response, BoxError>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // An address in the URL is used without being resolved, so it is judged here.
        let host = uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse()
            && let Err(refused) = self.reach.check(address)
        {
            return Box::pin(async move { Err(refused.into()) });
        }
        let limit = self.limit;
        let connecting = self.https.call(uri);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected.map(Noted::new),
                Err(_) => Err(NoConnection::TimedOut(limit).into()),
            }
        })
    }
}

/// Resolves names to the addresses that may be called: the connection is made to one of exactly
/// these, so what the name resolves to a moment later does not matter.
#[derive(Debug, Clone)]
pub(super) struct Resolver {
    reach: Reach,
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = NoConnection;
    type Future = BoxFuture<Self::Response, NoConnection>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NoConnection>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let reach = self.reach;
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0))
                .await
                .map_err(NoConnection::Unresolved)?;
            allowed(reach, resolved)
        })
    }
}

/// The addresses that may be called; an error if there are none.
fn allowed(
    reach: Reach,
    resolved: impl Iterator<Item = SocketAddr>,
) -> Result<vec::IntoIter<SocketAddr>, NoConnection> {
    let mut refused = None;
    let allowed: Vec<_> = resolved
        .filter(|address| match reach.check(address.ip()) {
            Ok(()) => true,
            Err(refusal) => {
                refused.get_or_insert(refusal);
                false
            }
        })
        .collect();
    if !allowed.is_empty() {
        return Ok(allowed.into_iter());
    }
    let nothing = || NoConnection::Unresolved(io::Error::other("it has no address"));
    Err(refused.unwrap_or_else(nothing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_addresses_the_public_ones_are_called() {
        let resolved = ["10.0.0.1:0", "8.8.8.8:0", "[::1]:0"].map(|a| a.parse().unwrap());
        let mut left = allowed(Reach::Public, resolved.into_iter()).unwrap();
        assert_eq!(left.next(), Some(resolved[1]));
        assert_eq!(left.next(), None);
        let all = allowed(Reach::Everything, resolved.into_iter()).unwrap();
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_name_with_private_addresses_only_is_refused() {
        let resolved = ["10.0.0.1:0", "[::1]:0"].map(|a| a.parse().unwrap());
        let refused = allowed(Reach::Public, resolved.into_iter()).unwrap_err();
        assert!(matches!(refused, NoConnection::Refused(..)), "{refused}");
        let link_local = ["169.254.169.254:0"].map(|a| a.parse().unwrap());
        let refused = allowed(Reach::default(), link_local.into_iter()).unwrap_err();
        assert!(matches!(refused, NoConnection::Refused(..)), "{refused}");
        assert!(allowed(Reach::default(), resolved.into_iter()).is_ok());
        assert!(allowed(Reach::Everything, link_local.into_iter()).is_ok());
        let nothing = allowed(Reach::Everything, std::iter::empty()).unwrap_err();
        assert!(matches!(nothing, NoConnection::Unresolved(_)), "{nothing}");
    }
}
