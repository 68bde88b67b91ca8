//! Two servers of different releases on one etcd: the newer one writes nothing that the other would ignore.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use etcd_fake::FakeEtcd;
use model::acl::AclPolicy;
use server::{ErrorClass, Server, ServerConfig, ServerError, ServerHandle, Surroundings, shared::SharedKey};
use state::{NamespaceRecord, Table};
use store::{EtcdOptions, EtcdStore, FORMATS, Member, Store as _, StoreError, Versions};

/// A server's store, of a release that reads formats up to that one.
fn store(fake: &FakeEtcd, name: &str, highest: u32) -> EtcdStore {
    open(fake, name, highest).expect("opens")
}

fn open(fake: &FakeEtcd, name: &str, highest: u32) -> Result<EtcdStore, StoreError> {
    let formats = Versions { highest, ..FORMATS };
    let (rpc, version) = (format!("{name}:4647"), format!("0.{highest}.0"));
    let member = Member { id: name.into(), name: name.into(), rpc, formats, version, ..Member::default() };
    let endpoints = vec![fake.endpoint()];
    let settle = Duration::from_millis(1);
    EtcdStore::open(EtcdOptions { endpoints, prefix: "d".into(), member, settle, ..EtcdOptions::default() })
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), holds).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// What a test writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Policy,
    Namespace,
    Limits,
    Device,
    Deadline,
}

async fn write(server: &ServerHandle, record: Record) -> Result<u64, ServerError> {
    let namespace = |limits| NamespaceRecord { name: "dev".into(), limits, ..NamespaceRecord::default() };
    match record {
        Record::Policy => {
            let rules = "namespace \"default\" { policy = \"read\" }".into();
            server.put_acl_policy(AclPolicy { name: "reads".into(), rules, ..AclPolicy::default() }).await
        }
        Record::Namespace => server.put_namespace(namespace(None)).await,
        Record::Limits => {
            let limits = model::records::NamespaceLimits { allocations: Some(3), ..Default::default() };
            server.put_namespace(namespace(Some(limits))).await
        }
        Record::Device | Record::Deadline => {
            let mut job = crate::fake::batch_job("job", 1);
            if record == Record::Device {
                let asked = model::RequestedDevice { name: "gpu".into(), ..model::RequestedDevice::default() };
                job.task_groups[0].tasks[0].resources.devices = vec![asked];
            } else {
                job.task_groups[0].max_run_duration = Some(model::GoDuration::from_secs(60));
            }
            let request = server::requests::RegisterJob { job, ..server::requests::RegisterJob::default() };
            server.register_job(request).await.map(|created| created.index)
        }
    }
}

/// It is refused, because a server reads less than it needs.
async fn refused(server: &ServerHandle, record: Record, (needs, in_use): (u32, u32)) {
    let error = write(server, record).await.expect_err("refused");
    assert_eq!(error.class(), ErrorClass::Unavailable, "{record:?}: {error}");
    let said = error.to_string();
    for part in [
        &format!("needs format {needs} of the servers' state, which is in format {in_use}"),
        "nothing was changed",
        "replace that server by this release",
    ] {
        assert!(said.contains(part), "{record:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_server_writes_what_an_older_one_would_ignore_only_after_its_upgrade() {
    let fake = FakeEtcd::start();
    let older = store(&fake, "older", 1);
    let newer = Arc::new(store(&fake, "newer", FORMATS.highest));
    until("both on the list", || newer.members().len() == 2).await;
    let shared = SharedKey::read(&STANDARD.encode([1; 32])).expect("a key");
    let around = Surroundings { store: Some(newer.clone()), ..Surroundings::default() };
    let config = ServerConfig { workers: 1, shared: Some(shared), ..ServerConfig::default() };
    let server = Server::start_in(config, around).await.expect("starts");
    let s = server.handle();

    write(s, Record::Namespace).await.expect("every release knows namespaces");
    refused(s, Record::Policy, (2, 1)).await;
    refused(s, Record::Limits, (3, 1)).await;
    let rows = older.load().expect("it reads all that there is").rows;
    let namespace = rows.iter().find(|row| row.table == Table::Namespaces && row.key.ends_with(b"dev")).expect("there");
    let holds = |part: &[u8]| namespace.value.as_ref().is_some_and(|v| v.windows(part.len()).any(|w| w == part));
    assert!(!holds(b"Limits") && rows.iter().all(|row| row.table.since() == 1));

    // A server of a release in between takes the place of the other one. It is there before that goes: a leader that is
    // alone raises the format at once.
    let between = store(&fake, "between", 2);
    until("three on the list", || newer.members().len() == 3).await;
    drop(older);
    until("format 2", || newer.format() == 2).await;
    write(s, Record::Policy).await.expect("both read it");
    refused(s, Record::Limits, (3, 2)).await;

    let later = store(&fake, "later", 3);
    until("three on the list", || newer.members().len() == 3).await;
    drop(between);
    until("format 3", || newer.format() == 3).await;
    write(s, Record::Limits).await.expect("both read it");
    refused(s, Record::Device, (4, 3)).await;
    refused(s, Record::Deadline, (4, 3)).await;

    drop(later);
    until("the newest format", || newer.format() == FORMATS.highest).await;
    write(s, Record::Device).await.expect("it is read by all");
    write(s, Record::Deadline).await.expect("it is read by all");
    assert!(s.snapshot().namespace(&"dev".into()).is_some_and(|dev| dev.limits.is_some()));
    // From then on no older release comes back that would ignore them.
    let error = open(&fake, "older", 2).expect_err("it reads less").to_string();
    let newest = FORMATS.highest;
    let told = format!("in format {newest}; this release (0.2.0) reads format 1 to 2: start release 0.{newest}.0");
    assert!(error.contains(&told), "{error}");
    server.shutdown().await;
}
