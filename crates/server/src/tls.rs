//! The certificate of HTTPS, which can be read again while the server runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use changefeed_core::{Error, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key. Cheap to clone; all clones see a reload.
#[derive(Clone)]
pub struct Certificate {
    files: Arc<(PathBuf, PathBuf)>,
    current: Arc<RwLock<TlsAcceptor>>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificate").field(&self.files.0).finish()
    }
}

impl Certificate {
    /// Reads a certificate and its key.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self> {
        Ok(Certificate {
            current: Arc::new(RwLock::new(read(certificate, key)?)),
            files: Arc::new((certificate.to_owned(), key.to_owned())),
        })
    }

    /// Reads the files again. New connections use what they hold now; if they cannot be read, the
    /// certificate stays what it was.
    pub fn reload(&self) -> Result<()> {
        let (certificate, key) = &*self.files;
        let read = read(certificate, key)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let wrong = |path: &Path, what: &str| {
        Error::invalid(format!("'{}' {what}", path.display())).advise(
            "--tls-cert takes the certificate with its chain, --tls-key its key, both as PEM",
        )
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|e| wrong(certificate, "cannot be read as a certificate").caused_by(e))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "holds no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| wrong(key, "cannot be read as a private key").caused_by(e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|b| b.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|e| wrong(key, "does not go with the certificate").caused_by(e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
