//! TLS before a fake, as an etcd with `--client-cert-auth` has it.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tokio::{
    io::copy_bidirectional,
    net::TcpStream,
    sync::watch::{self, Receiver, Sender},
};

use crate::FakeEtcd;

/// Takes connections whose clients show a certificate, and passes their bytes on to a fake. It ends when dropped.
#[derive(Debug)]
pub struct Front {
    address: SocketAddr,
    shown: Arc<Mutex<Vec<Vec<u8>>>>,
    standing: Sender<usize>,
    cut: Sender<u64>,
    stop: Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What a connection is told and tells.
#[derive(Clone)]
struct Line {
    to: SocketAddr,
    tls: tls::Agent,
    shown: Arc<Mutex<Vec<Vec<u8>>>>,
    standing: Sender<usize>,
    cut: Receiver<u64>,
}

impl Front {
    /// One that speaks TLS as this agent's RPC does, which `tls.rpc` must be on for.
    ///
    /// # Panics
    /// When the machine gives it no port or thread.
    #[must_use]
    pub fn before(fake: &FakeEtcd, tls: tls::Agent) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket of tokio's");
        let address = listener.local_addr().expect("its address");
        let (stop, mut stopped) = watch::channel(false);
        let (cut, heard) = watch::channel(0);
        let (shown, standing) = (Arc::default(), Sender::new(0));
        let line = Line { to: fake.address, tls, shown: Arc::clone(&shown), standing: standing.clone(), cut: heard };
        let thread = thread::Builder::new().name("front-of-etcd".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                loop {
                    tokio::select! {
                        Ok((stream, from)) = listener.accept() => drop(tokio::spawn(line.clone().pass(stream, from))),
                        _ = stopped.changed() => break,
                    }
                }
            });
        });
        Self { address, shown, standing, cut, stop, thread: Some(thread.expect("a thread")) }
    }

    /// Its address as an endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate (DER) that each connection was made with, the newest last.
    #[must_use]
    pub fn shown(&self) -> Vec<Vec<u8>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many connections there are now.
    #[must_use]
    pub fn standing(&self) -> usize {
        *self.standing.borrow()
    }

    /// Ends all connections that there are now.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Line {
    async fn pass(mut self, stream: TcpStream, from: SocketAddr) {
        self.cut.mark_unchanged();
        let Ok((mut here, _)) = self.tls.accept_rpc(stream, from).await else { return };
        let Ok(mut there) = TcpStream::connect(self.to).await else { return };
        let first = here.peer_certificates().and_then(<[_]>::first);
        let certificate = first.map(|certificate| certificate.to_vec()).unwrap_or_default();
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).push(certificate);
        self.standing.send_modify(|standing| *standing += 1);
        tokio::select! {
            _ = copy_bidirectional(&mut here, &mut there) => {}
            _ = self.cut.changed() => {}
        }
        self.standing.send_modify(|standing| *standing -= 1);
    }
}
