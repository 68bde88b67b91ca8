//! Connections that stand while the authorities of the agent change: who has lost its authority is cut off.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustls::{
    CertificateError, RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::WebPkiSupportedAlgorithms,
    pki_types::{CertificateDer, UnixTime},
    server::ParsedCertificate,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
};
use tokio_rustls::TlsStream;
use tokio_stream::{Stream as _, StreamExt as _, wrappers::WatchStream};

use crate::{Certificate, Settings, load, why};

/// The bytes of a TLS connection.
///
/// An agent looks at the peer's certificate again when a reload has taken authorities away. If none of those that are
/// left has signed it, all reads and writes fail from then on, so that whoever holds the connection lets go of it, and
/// the log says why. Only an authority that is missing counts. A certificate that has expired since the handshake, or
/// that the peer has replaced, ends no connection: to swap the certificates of agents drops nobody.
#[derive(Debug)]
pub struct Stream<T> {
    io: TlsStream<T>,
    /// `None` where the peer has shown no certificate, or this side never changes its mind.
    watched: Option<Watched>,
    cut_off: bool,
}

/// Authorities of a running agent, as of its last reload.
pub(crate) type Authorities = watch::Receiver<Arc<RootCertStore>>;

#[derive(Debug)]
struct Watched {
    reloads: WatchStream<Arc<RootCertStore>>,
    /// Who is at the other end, for the log.
    peer: String,
    /// When the certificate was found good.
    since: UnixTime,
}

impl<T> Stream<T> {
    /// A connection right after its handshake with `peer`. `authorities` was subscribed to before the handshake, so
    /// that no reload falls in between.
    pub(crate) fn new(io: TlsStream<T>, peer: impl Into<String>, authorities: Option<Authorities>) -> Self {
        let shown = io.get_ref().1.peer_certificates().is_some();
        let watched = authorities.filter(|_| shown).map(|authorities| Watched {
            reloads: WatchStream::from_changes(authorities),
            peer: peer.into(),
            since: UnixTime::now(),
        });
        Self { io, watched, cut_off: false }
    }

    /// The certificates that the peer has shown, its own first.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.io.get_ref().1.peer_certificates()
    }

    /// What is spoken over it (ALPN).
    #[must_use]
    pub fn protocol(&self) -> Option<&[u8]> {
        self.io.get_ref().1.alpn_protocol()
    }

    /// Ends when the peer has lost its authority, and says so in the log. Reads and writes go on: for a protocol that
    /// can end a connection in an orderly way. Otherwise, and where there is nothing to watch, it never ends.
    pub fn lost_authority(&mut self) -> impl Future<Output = ()> + Send + 'static + use<T> {
        let watched = self.watched.take();
        let (side, chain) = (self.side(), self.peer_certificates().unwrap_or_default().to_vec());
        async move {
            if let Some(mut watched) = watched {
                while let Some(roots) = watched.reloads.next().await {
                    if watched.lost(&roots, side, &chain) {
                        return;
                    }
                }
            }
            std::future::pending().await
        }
    }

    fn side(&self) -> Side {
        match self.io {
            TlsStream::Server(_) => Side::Accepted,
            TlsStream::Client(_) => Side::Dialled,
        }
    }

    /// Fails once the peer has lost its authority. Wakes the task at a reload.
    fn stands(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let side = self.side();
        while let Some(watched) = &mut self.watched
            && let Poll::Ready(reloaded) = Pin::new(&mut watched.reloads).poll_next(cx)
        {
            // The agent has gone: nothing is reloaded any more.
            let Some(roots) = reloaded else {
                self.watched = None;
                break;
            };
            let chain = self.io.get_ref().1.peer_certificates().unwrap_or_default();
            if watched.lost(&roots, side, chain) {
                (self.watched, self.cut_off) = (None, true);
            }
        }
        self.open()
    }

    fn open(&self) -> io::Result<()> {
        if self.cut_off {
            let why = "closed here: the authority of the peer's certificate is no longer in tls.ca_file";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        Ok(())
    }
}

impl Watched {
    /// Whether the peer has lost its authority.
    fn lost(&self, roots: &Arc<RootCertStore>, side: Side, chain: &[CertificateDer<'static>]) -> bool {
        let Err(why) = still_trusted(roots, side, chain, self.since) else { return false };
        tracing::warn!(
            peer = self.peer,
            certificate = shown(chain),
            why,
            "a connection is closed: its peer's \
            certificate is no longer trusted"
        );
        true
    }
}

/// Which end of a connection this side is; it says what the peer's certificate must be good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Accepted,
    Dialled,
}

/// Whether an authority of `roots` has signed a chain that was good at the handshake. Time does not count: the chain is
/// looked at as of the handshake, and one that is out of time even then stays.
///
/// # Errors
/// Which authority is missing, and how the peer comes back.
fn still_trusted(
    roots: &Arc<RootCertStore>,
    side: Side,
    chain: &[CertificateDer<'static>],
    handshake: UnixTime,
) -> Result<(), String> {
    let Some((own, between)) = chain.split_first() else { return Ok(()) };
    let checked = match side {
        Side::Accepted => load::clients(roots, &load::provider(&Settings::default()))
            .map_err(|why| why.to_string())?
            .verify_client_cert(own, between, handshake)
            .map(drop),
        Side::Dialled => ParsedCertificate::try_from(own).and_then(|own| {
            verify_server_cert_signed_by_trust_anchor(&own, roots, between, handshake, algorithms().all)
        }),
    };
    match checked {
        Ok(())
        | Err(rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => Ok(()),
        Err(_) => {
            // The last one that was shown names the authority.
            let last = between.last().unwrap_or(own);
            let authority = Certificate::parse(last).map(|certificate| certificate.issuer).unwrap_or_default();
            Err(format!(
                "the certificate that it showed when it connected is of {authority:?}, and this authority is no longer \
                    in tls.ca_file; with a certificate of an authority that is, it can connect again"
            ))
        }
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms
}

/// The names of the peer's certificate.
fn shown(chain: &[CertificateDer<'_>]) -> String {
    let first = chain.first().and_then(|own| Certificate::parse(own).ok());
    first.map(|own| own.shown()).unwrap_or_default()
}

/// Whether a reload has taken authorities away. Otherwise all peers that were trusted are.
pub(crate) fn takes_away(before: &RootCertStore, after: &RootCertStore) -> bool {
    before.roots.iter().any(|root| !after.roots.contains(root))
}

/// What a broken connection means, for those who hear of it as a text only. A server looks at the certificate of a
/// client when that has ended the handshake already: the client hears the refusal when it reads.
fn explained(error: io::Error) -> io::Error {
    if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
        return io::Error::new(error.kind(), why(&error));
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return io::Error::new(error.kind(), "the peer closed the connection");
    }
    error
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stands(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf).map_err(explained)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.open()?;
        Pin::new(&mut self.io).poll_write(cx, buf).map_err(explained)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx).map_err(explained)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.open()?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs).map_err(explained)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{
        issue::{self, Authority, Leaf},
        pem,
    };

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn unix(time: SystemTime) -> UnixTime {
        UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970"))
    }

    #[test]
    fn only_a_missing_authority_ends_trust() {
        let dir = tempfile::tempdir().expect("a directory");
        let now = SystemTime::now();
        let begun = now - 20 * DAY;
        // Two of the same name, with keys of their own, and a stranger.
        let [own, namesake, stranger] = ["A", "A", "B"].map(|name| {
            let authority = Authority { common_name: name.into(), days: 90, ..Authority::default() };
            issue::authority(&authority, begun).expect("an authority")
        });
        let (ca, key) = (dir.path().join("ca"), dir.path().join("key"));
        issue::write_new(&ca, &own.certificate, false).expect("written");
        issue::write_new(&key, &own.key, true).expect("written");
        let leaf = Leaf { name: "client.global.nomad".into(), days: 10, ..Leaf::default() };
        let leaf = issue::leaf(&leaf, &ca, &key, begun).expect("a certificate");
        let file = dir.path().join("leaf");
        issue::write_new(&file, &leaf.certificate, false).expect("written");
        let chain = pem::File { setting: "cert_file", path: &file }.certificates().expect("a chain");
        let roots = |of: &[&issue::Pair]| {
            let texts: Vec<String> = of.iter().map(|pair| pair.certificate.clone()).collect();
            Arc::new(pem::text_roots("ca_file", &texts).expect("authorities"))
        };

        // A handshake while it was valid, and one whose time was told wrong: it has expired ten days ago.
        for handshake in [unix(begun + 5 * DAY), unix(now)] {
            for side in [Side::Accepted, Side::Dialled] {
                let trusted = |of: &[&issue::Pair]| still_trusted(&roots(of), side, &chain, handshake);
                assert_eq!(trusted(&[&own]), Ok(()));
                assert_eq!(trusted(&[&stranger, &own]), Ok(()));
            }
        }
        for side in [Side::Accepted, Side::Dialled] {
            for other in [&stranger, &namesake] {
                let why = still_trusted(&roots(&[other]), side, &chain, unix(begun + 5 * DAY)).expect_err("revoked");
                assert!(why.contains("is of \"A\", and this authority is no longer in tls.ca_file"), "{why}");
            }
        }
        assert!(takes_away(&roots(&[&own]), &roots(&[&stranger])) && takes_away(&roots(&[&own]), &roots(&[&namesake])));
        assert!(!takes_away(&roots(&[&own]), &roots(&[&stranger, &own])));
    }
}
