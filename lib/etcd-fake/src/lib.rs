//! An etcd of one member within a test: revisions, compares, leases and watches as etcd has them, in memory, over real
//! gRPC on a free port; with switches for what goes wrong. [`Front`] puts TLS before it.
//!
//! Linked into no program that ships. Begin reading at [`FakeEtcd`]; `data` has the semantics, `service` the calls.

mod data;
mod front;
mod service;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use etcd::proto::{
    auth_server::AuthServer, cluster_server::ClusterServer, kv_server::KvServer, lease_server::LeaseServer,
    maintenance_server::MaintenanceServer, watch_server::WatchServer,
};
use tokio::sync::watch;
use tonic::transport::Server;

use self::{
    data::Data,
    service::{Service, Shared, Switches},
};
pub use self::{front::Front, service::Fault};

const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// A running fake; it ends when dropped.
#[derive(Debug)]
pub struct FakeEtcd {
    shared: Arc<Shared>,
    address: SocketAddr,
    frozen: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A backup of a fake.
#[derive(Clone, Debug)]
pub struct Backup(Data);

/// What transactions with puts there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many were answered or done.
    pub txns: u64,
    /// How often all batches were read, from the oldest or a snapshot to the newest.
    pub loads: u64,
    /// The most operations of one.
    pub operations: usize,
    /// The most bytes of one.
    pub bytes: usize,
    /// Compactions.
    pub compactions: u64,
    /// Defragmentations, with those that are under way.
    pub defragmentations: u64,
}

impl FakeEtcd {
    /// Starts an empty one.
    ///
    /// # Panics
    /// When the machine gives it no port or thread.
    #[must_use]
    pub fn start() -> Self {
        Self::serve(None)
    }

    /// Another member with the same data, which is frozen and ended for itself.
    ///
    /// # Panics
    /// When the machine gives it no port or thread.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::serve(Some(self.shared.clone()))
    }

    /// Lists another member besides, with this name: the one beside this, which may be frozen or dropped.
    pub fn list(&self, name: &str, beside: &Self) {
        self.switches(|switches| switches.listed.push((name.to_owned(), beside.endpoint())));
    }

    fn serve(shared: Option<Arc<Shared>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket of tokio's");
        let address = listener.local_addr().expect("its address");
        let (stop, mut stopped) = watch::channel(false);
        let shared = shared.unwrap_or_else(|| Arc::new(Shared::new(address)));
        let frozen = watch::Sender::new(false);
        let service = Service(shared.clone(), frozen.clone());
        let thread = thread::Builder::new().name("fake-etcd".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
                let kv = KvServer::new(service.clone())
                    .max_decoding_message_size(MAX_MESSAGE_BYTES)
                    .max_encoding_message_size(MAX_MESSAGE_BYTES);
                let serving = Server::builder()
                    .add_service(kv)
                    .add_service(WatchServer::new(service.clone()))
                    .add_service(LeaseServer::new(service.clone()))
                    .add_service(MaintenanceServer::new(service.clone()))
                    .add_service(ClusterServer::new(service.clone()))
                    .add_service(AuthServer::new(service.clone()))
                    .serve_with_incoming(incoming);
                tokio::select! {
                    served = serving => served.expect("the fake serves"),
                    () = service.expire_leases() => {}
                    _ = stopped.changed() => {}
                }
            });
        });
        Self { shared, address, frozen, stop, thread: Some(thread.expect("a thread")) }
    }

    /// Its address as an endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next `count` transactions that put or delete a key with this text in it suffer this. A deletion of several
    /// counts by its first key.
    pub fn fail(&self, fault: Fault, count: usize, key: &str) {
        self.switches(|switches| switches.faults.extend(std::iter::repeat_n((fault, key.to_owned()), count)));
    }

    /// No more faults.
    pub fn mend(&self) {
        self.switches(|switches| switches.faults.clear());
    }

    /// How many faults have not happened yet.
    #[must_use]
    pub fn faults_left(&self) -> usize {
        self.switches(|switches| switches.faults.len())
    }

    /// Every call takes at least this.
    pub fn delay(&self, delay: Duration) {
        self.switches(|switches| switches.delay = delay);
    }

    /// The quota is used up, or not.
    pub fn set_no_space(&self, is: bool) {
        self.switches(|switches| switches.no_space = is);
    }

    /// Defragmentations go on for as long as this is set, and their member does not tell its status meanwhile. Other
    /// calls are answered, as by the members beside it.
    pub fn hold_defragmentations(&self, hold: bool) {
        self.switches(|switches| (switches.hold, switches.defragments) = (hold, false));
    }

    /// Somebody else puts this key right before the next lease is granted.
    pub fn put_before_grant(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.switches(|switches| switches.before_grant = Some((key.to_owned(), value.into())));
    }

    /// The members' data differ, or not.
    pub fn set_corrupt(&self, is: bool) {
        self.switches(|switches| switches.corrupt = is);
    }

    /// While frozen it answers nothing, and does nothing.
    pub fn set_frozen(&self, is: bool) {
        if !is {
            // As a new leader of etcd does.
            self.data().restart_leases();
        }
        self.frozen.send_replace(is);
    }

    /// Only this user may do anything.
    pub fn set_user(&self, name: &str, password: &str) {
        self.switches(|switches| switches.user = Some((name.to_owned(), password.to_owned())));
    }

    /// The tokens that were given are valid no more.
    pub fn forget_tokens(&self) {
        self.switches(|switches| switches.token += 1);
    }

    /// Everything as it is now.
    #[must_use]
    pub fn backup(&self) -> Backup {
        Backup(self.data().clone())
    }

    /// Everything as it was, revisions too; all streams end.
    pub fn restore(&self, backup: &Backup) {
        let mut data = self.data();
        *data = backup.0.clone();
        data.restart_leases();
        drop(data);
        self.shared.lives.send_modify(|lives| *lives += 1);
    }

    /// The revision goes up, as by `etcdutl snapshot restore --bump-revision`: clients of a restored etcd see none that
    /// goes back.
    pub fn raise_revision(&self, by: i64) {
        let revision = {
            let mut data = self.data();
            data.revision += by;
            data.revision
        };
        self.shared.revision.send_replace(revision);
    }

    /// Ends all streams.
    pub fn break_streams(&self) {
        self.shared.lives.send_modify(|lives| *lives += 1);
    }

    /// Watches send nothing more, and do not end.
    pub fn silence_watches(&self) {
        self.switches(|switches| switches.silent = true);
    }

    /// Deletes a key behind everybody's back.
    pub fn delete(&self, key: &str) {
        self.delete_by(etcd::ops::delete(key));
    }

    /// Deletes the keys that begin with this text, as `etcdctl del --prefix` does.
    pub fn delete_prefix(&self, prefix: &str) {
        self.delete_by(etcd::ops::delete_between(prefix, etcd::ops::end_of_prefix(prefix.as_bytes())));
    }

    fn delete_by(&self, operation: etcd::proto::RequestOp) {
        let request = etcd::ops::when(Vec::new(), vec![operation], Vec::new());
        let revision = {
            let mut data = self.data();
            drop(data.txn(&request));
            data.revision
        };
        self.shared.revision.send_replace(revision);
    }

    /// Keys with their values.
    #[must_use]
    pub fn keys(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let data = self.data();
        let found = data.keys().filter(|kv| kv.key.starts_with(prefix.as_bytes()));
        found.map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv.value.clone())).collect()
    }

    /// What transactions there were.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.switches(|switches| switches.seen)
    }

    fn data(&self) -> std::sync::MutexGuard<'_, Data> {
        self.shared.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switches<T>(&self, with: impl FnOnce(&mut Switches) -> T) -> T {
        let switches: &Mutex<Switches> = &self.shared.switches;
        with(&mut switches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for FakeEtcd {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
