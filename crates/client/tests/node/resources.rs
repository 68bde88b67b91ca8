//! Whole cores, and secrets in memory.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use client::{Client, ClientHandle, Cores};
use model::{AllocId, Allocation, ClientStatus, Job};
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, mounts, poll, processes, task};

fn sleeper() -> (Allocation, Job) {
    alloc("service", vec![task("t", "raw_exec", json!({"command": "/bin/sleep", "args": ["600"]}))])
}

/// As the kernel lists the cores of the workload.
fn cores_of(rig: &Rig, id: AllocId) -> String {
    let id = id.to_string();
    let sleeps = processes(rig.dir.path()).into_iter().filter(|(_, line)| line.starts_with("/bin/sleep 600"));
    let mut of_it = sleeps.filter(|(pid, _)| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.windows(id.len()).any(|w| w == id.as_bytes())
    });
    let status = of_it
        .next()
        .map(|(pid, _)| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
        .unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or_default().trim().to_owned()
}

/// `0,1,4` in the kernel's way.
fn kernel_list(cores: &[u16]) -> String {
    let mut parts: Vec<(u16, u16)> = Vec::new();
    for core in cores {
        match parts.last_mut() {
            Some((_, to)) if *to + 1 == *core => *to = *core,
            _ => parts.push((*core, *core)),
        }
    }
    let range = |(from, to): &(u16, u16)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    parts.iter().map(range).collect::<Vec<_>>().join(",")
}

fn with_cores(cores: &[u16]) -> (Allocation, Job) {
    let (mut a, job) = sleeper();
    let mut resources = (*a.resources).clone();
    for task in resources.tasks.values_mut() {
        task.cpu.reserved_cores = cores.to_vec();
    }
    a.resources = resources.into();
    (a, job)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_has_its_cores_for_itself() {
    let (rig, node) = Rig::with("raw_exec").await;
    let all = node.handle().node().resources.cpu.reservable_cpu_cores.clone();
    if all.len() < 2 {
        skip::cannot(&format!("this host has {} cores that a task can have for itself; two are needed", all.len()));
        end(&rig, node).await;
        return;
    }
    let (first, others) = (all[0], kernel_list(&all[1..]));
    // One that runs before anybody has cores, and one that comes later.
    let (before, job) = sleeper();
    rig.server.place(&before, &job);
    rig.server.status(before.id, ClientStatus::Running).await;
    eventually("its process", || !cores_of(&rig, before.id).is_empty()).await;
    assert_eq!(cores_of(&rig, before.id), kernel_list(&all));
    let (own, job) = with_cores(&[first]);
    rig.server.place(&own, &job);
    rig.server.status(own.id, ClientStatus::Running).await;
    eventually("its own core", || cores_of(&rig, own.id) == first.to_string()).await;
    eventually("the other is kept off it", || cores_of(&rig, before.id) == others).await;
    let (after, job) = sleeper();
    rig.server.place(&after, &job);
    rig.server.status(after.id, ClientStatus::Running).await;
    eventually("the new one is kept off it", || cores_of(&rig, after.id) == others).await;
    assert_eq!(cores_of(&rig, own.id), first.to_string());

    // The next agent finds it so and leaves it so.
    node.stop().await;
    let node = rig.node().await;
    assert_eq!((cores_of(&rig, own.id), cores_of(&rig, before.id)), (first.to_string(), others.clone()));
    // Nobody has it any more: it is everybody's.
    rig.server.stop_alloc(own.id);
    rig.server.status(own.id, ClientStatus::Complete).await;
    for id in [before.id, after.id] {
        eventually("all cores again", || cores_of(&rig, id) == kernel_list(&all)).await;
    }
    let books = node.handle();
    end(&rig, node).await;
    let left = books.audit(false).await;
    assert!(
        !left.findings.iter().any(|f| f.kind == api::shapes::AuditKind::Cgroup),
        "no cgroup stays: {:#?}",
        left.findings
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_runs_on_cores_that_the_operator_keeps() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    let all = node.handle().node().resources.cpu.reservable_cpu_cores.clone();
    node.stop().await;
    let mut config = rig.config();
    config.reserved.cores = Cores::Others(Vec::new());
    let why = Client::start(config.clone()).await.err().expect("no core is left").to_string();
    if all.len() < 2 {
        skip::cannot(&format!("this host has {} cores that a task can have for itself; two are needed", all.len()));
        assert!(why.contains("reservable_cores"), "{why}");
        return;
    }
    assert!(why.contains("reservable_cores leaves no core"), "{why}");
    config.reserved.cores = Cores::These(vec![all[0]]);
    let node = rig.node_with(config.clone()).await;
    rig.driver_ready("raw_exec").await;
    let told = node.handle().node();
    assert_eq!(told.resources.cpu.reservable_cpu_cores, all[1..]);
    assert!(
        told.reserved.cpu.cpu_shares > 0 && told.reserved.cpu.cpu_shares < told.resources.cpu.cpu_shares,
        "{:?}",
        told.reserved
    );
    let (a, job) = sleeper();
    rig.server.place(&a, &job);
    rig.server.status(a.id, ClientStatus::Running).await;
    let others = kernel_list(&all[1..]);
    eventually("the task is kept off it", || cores_of(&rig, a.id) == others).await;
    // Another agent with other words for the same, and one that keeps nothing.
    node.stop().await;
    config.reserved.cores = Cores::Others(all[1..].to_vec());
    let node = rig.node_with(config).await;
    assert_eq!(cores_of(&rig, a.id), others);
    node.stop().await;
    let node = rig.node().await;
    eventually("all cores again", || cores_of(&rig, a.id) == kernel_list(&all)).await;
    end(&rig, node).await;
}

fn secrets(rig: &Rig, id: AllocId) -> std::path::PathBuf {
    rig.alloc_dir(id).join("t/secrets")
}

/// Device of the directory; another one than its parent's when it is mounted.
fn device(dir: &Path) -> u64 {
    fs::metadata(dir).expect("there").dev()
}

fn in_memory(node: &ClientHandle) -> bool {
    let attributes = &node.node().attributes;
    let is = &*attributes["secrets.memory"] == "true";
    assert_ne!(is, attributes.contains_key("secrets.problem"), "the reason is told where it is not");
    is
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_memory_until_the_task_is_dead() {
    let (rig, node) = Rig::with("raw_exec").await;
    let memory = in_memory(&node.handle());
    let script = "echo secret > $NOMAD_SECRETS_DIR/key; echo $$ >> $NOMAD_ALLOC_DIR/data/runs; exec sleep 600";
    let mut t = task("t", "raw_exec", json!({"command": "/bin/sh", "args": ["-c", script]}));
    t.resources.secrets_mb = memory.then_some(3);
    let (a, _) = rig.run("service", vec![t]).await;
    let dir = secrets(&rig, a.id);
    // A line of each run that has written its file.
    let runs = || fs::read_to_string(rig.alloc_dir(a.id).join("alloc/data/runs")).unwrap_or_default().lines().count();
    eventually("the task's file", || runs() == 1 && dir.join("key").exists()).await;
    if !memory {
        skip::cannot(&format!("secrets are no memory here: {}", &*node.handle().node().attributes["secrets.problem"]));
        end(&rig, node).await;
        return;
    }
    let mounted = device(&dir);
    assert_ne!(mounted, device(dir.parent().expect("the task's directory")));
    let room = rustix::fs::statvfs(&dir).expect("statvfs");
    assert_eq!(room.f_blocks * room.f_frsize, 3 << 20);
    let audit = node.handle().audit(false).await;
    let mounts_of = |audit: &api::shapes::NodeAudit| {
        audit.findings.iter().filter(|f| f.kind == api::shapes::AuditKind::Mount).count()
    };
    assert_eq!((audit.balanced, mounts_of(&audit)), (true, 1), "the books know it: {:#?}", audit.findings);

    // An agent that dies takes nothing along, and the next one mounts nothing twice.
    node.stop().await;
    let node = rig.node().await;
    assert_eq!((device(&dir), mounts(rig.dir.path()).len()), (mounted, 1));
    eventually("the task to be known again", || node.handle().running(a.id, "t")).await;
    node.handle().restart(a.id, Some("t"), false).await.expect("restarted");
    rig.server.alloc(a.id, "the restart", |u| u.task_states["t"].restarts == 1).await;
    rig.server.status(a.id, ClientStatus::Running).await;
    eventually("the second run", || runs() == 2).await;
    assert_eq!((device(&dir), mounts(rig.dir.path()).len()), (mounted, 1));

    // A boot in between: the mount is gone, and so is what it held.
    node.stop().await;
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    assert!(!dir.join("key").exists(), "it was never on the disk");
    let node = rig.node().await;
    eventually("the task to be known again", || node.handle().running(a.id, "t")).await;
    node.handle().restart(a.id, Some("t"), false).await.expect("restarted");
    eventually("the third run", || runs() == 3).await;
    assert!(dir.join("key").exists() && mounts(rig.dir.path()).len() == 1, "secrets are made anew");

    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    eventually("nothing stays mounted", || mounts(rig.dir.path()).is_empty()).await;
    assert!(fs::read_dir(&dir).expect("there").next().is_none());
    // A mount that no record claims goes with the next sweep.
    rustix::mount::mount(c"tmpfs", &dir, c"tmpfs", rustix::mount::MountFlags::empty(), c"size=64k").expect("mounted");
    poll("the sweep", async || {
        let audit = node.handle().audit(true).await;
        if mounts(rig.dir.path()).is_empty() { Ok(()) } else { Err(audit) }
    })
    .await;
    end(&rig, node).await;
}
