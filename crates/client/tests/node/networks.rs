//! Groups with a network namespace of their own: tasks that share it, plugins that connect it, and nothing left of it
//! afterwards.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use api::shapes::{AuditKind as Kind, AuditStatus as Status};
use client::{Client, ClientConfig, PluginCommand};
use model::{
    Allocation, ClientStatus, Job, Network, Service,
    network::{AllocatedPort, Dns},
    resources::{AllocatedResources, AllocatedShared},
};
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, plugin, task};

/// With driver exec and CNI plugins of the test's own; None where nothing can be isolated.
fn config(rig: &Rig) -> Option<ClientConfig> {
    if let Err(why) = executor_client::isolation_supported() {
        skip::cannot(&format!("nothing can be isolated here: {why}"));
        return None;
    }
    let cgroups = executor_client::CgroupHost::detect();
    if let Some(missing) = ["memory", "cpu", "pids"].into_iter().find(|controller| !cgroups.enforces(controller)) {
        skip::cannot(&format!("driver exec needs the cgroup controller {missing}"));
        return None;
    }
    let mut config = rig.config();
    config.builtin_drivers.push(PluginCommand { name: "exec".into(), program: plugin(), args: vec!["exec".into()] });
    config.network.cni_path = vec![rig.dir.path().join("cni")];
    config.network.cni_config_dir = rig.dir.path().join("cni");
    Some(config)
}

/// A plugin that notes what it is asked and answers with an address, and the network `mine` that it makes. It finds the
/// network broken while the file `broken` is there, which a new one takes away unless `always` is there as well; the
/// file `address` has the address that it gives. The file `full` makes it refuse one join.
fn install(rig: &Rig) -> PathBuf {
    let dir = rig.dir.path().join("cni");
    fs::create_dir_all(&dir).expect("directory");
    let calls = dir.join("calls");
    let result = r#"{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[{"version":"4","interface":0,"address":"'$(cat address)'/24"}]}"#;
    fs::write(dir.join("address"), "10.77.0.9").expect("address");
    let script = format!(
        "#!/bin/sh\n[ -n \"$CNI_COMMAND\" ] || {{ echo 'fake plugin v1.2.3' >&2; exit 0; }}\ncd {}\ncat \
            > \"calls.$CNI_COMMAND\"\n\
         echo \"$CNI_COMMAND $CNI_CONTAINERID $CNI_ARGS\" >> calls\n\
         [ $CNI_COMMAND = ADD ] && [ -e full ] && {{ rm full; echo '{{\"code\": 11, \"msg\": \"no address left\"}}'; \
         exit 1; }}\n\
         [ $CNI_COMMAND = ADD ] && [ ! -e always ] && rm -f broken\n\
         [ $CNI_COMMAND = CHECK ] && [ -e broken ] && {{ echo '{{\"code\": 11, \"msg\": \"no cable\"}}'; exit 1; }}\n\
         echo '{result}'\n",
        dir.display()
    );
    // Copied by a process of its own: what a fork of this one holds open for writing cannot be executed.
    let text = dir.join("fake.txt");
    fs::write(&text, script).expect("script");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).expect("mode");
    assert!(std::process::Command::new("cp").arg(&text).arg(dir.join("fake")).status().expect("cp").success());
    fs::remove_file(&text).expect("remove");
    let list = json!({"cniVersion": "0.4.0", "name": "mine",
        "plugins": [{"type": "fake", "capabilities": {"portMappings": true}}]});
    fs::write(dir.join("mine.conflist"), list.to_string()).expect("list");
    calls
}

fn calls(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn connected(mode: &str, script: &str, tasks: &[&str]) -> (Allocation, Job) {
    let tasks =
        tasks.iter().map(|name| task(name, "exec", json!({"command": "/bin/sh", "args": ["-c", script]}))).collect();
    let (alloc, mut job) = alloc("service", tasks);
    job.task_groups[0].networks = vec![Network { mode: mode.into(), ..Network::default() }];
    (alloc, job)
}

async fn ready(rig: &Rig, config: &ClientConfig) -> Client {
    let node = rig.node_with(config.clone()).await;
    rig.driver_ready("exec").await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_group_share_a_network_of_their_own() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let node = ready(&rig, &config).await;
    let script = "f=/alloc/data/$NOMAD_TASK_NAME; readlink /proc/self/ns/net > $f.ns; cat /proc/net/dev > $f.dev; \
        hostname > $f.name; \
                  cat /etc/hosts /etc/hostname /etc/resolv.conf > $f.files; touch $f.done; exec sleep 600";
    let (a, mut job) = connected("none", script, &["one", "two"]);
    job.task_groups[0].networks[0].hostname = "box-${NOMAD_ALLOC_INDEX}".into();
    job.task_groups[0].networks[0].dns = Some(Dns { servers: vec!["10.9.8.7".into()], ..Dns::default() });
    rig.server.place(&a, &job);
    rig.server.status(a.id, ClientStatus::Running).await;
    let data = rig.alloc_dir(a.id).join("alloc/data");
    let read = |name: &str| fs::read_to_string(data.join(name)).unwrap_or_default();
    eventually("what both tasks see", || ["one.done", "two.done"].iter().all(|f| data.join(f).exists())).await;
    let own = fs::read_link("/proc/self/ns/net").expect("namespace").display().to_string();
    assert_eq!(read("one.ns"), read("two.ns"));
    assert!(read("one.ns").starts_with("net:") && read("one.ns").trim() != own);
    let interfaces: Vec<String> =
        read("one.dev").lines().filter_map(|l| Some(l.split_once(':')?.0.trim().to_owned())).collect();
    assert!(
        interfaces.contains(&"lo".to_owned()) && !interfaces.iter().any(|i| i.starts_with("eth")),
        "{interfaces:?}"
    );
    assert_eq!(read("one.name"), "box-0\n");
    let files = read("two.files");
    assert!(
        files.contains("127.0.1.1 box-0\n") && files.contains("\nbox-0\n") && files.contains("nameserver 10.9.8.7\n"),
        "{files}"
    );

    let dir = config.networks_dir().join(a.id.to_string());
    let audit = node.handle().audit(false).await;
    let of = |f: &&api::shapes::AuditFinding| f.kind == Kind::Netns && f.alloc_id == a.id;
    assert!(audit.findings.iter().filter(of).all(|f| f.status == Status::Claimed), "{:#?}", audit.findings);
    assert_eq!(audit.findings.iter().filter(of).count(), 1);
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    eventually("the namespace to go with its last task", || !dir.exists()).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_is_joined_once_and_left_once() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let asked = install(&rig);
    let node = ready(&rig, &config).await;
    let told = rig.server.now().node.expect("a node");
    assert_eq!(told.attributes.get("plugins.cni.version.fake").map(|v| &**v), Some("1.2.3"));
    let modes: Vec<&str> =
        told.resources.node_networks.iter().map(|n| n.mode.as_str()).filter(|m| *m != "host").collect();
    assert_eq!(modes, ["none", "cni/mine"], "no bridge without its plugins");

    let (mut a, mut job) = connected("cni/mine", "exec sleep 600", &["one", "two"]);
    job.task_groups[0].services = vec![Service {
        name: "inside".into(),
        provider: "nomad".into(),
        port_label: "http".into(),
        address_mode: "alloc".into(),
        ..Service::default()
    }];
    let port = AllocatedPort {
        label: "http".into(),
        value: 23_456,
        to: 80,
        host_ip: "127.0.0.1".into(),
        ..AllocatedPort::default()
    };
    let shared = AllocatedShared { ports: vec![port], ..AllocatedShared::default() };
    a.resources = std::sync::Arc::new(AllocatedResources { shared, ..AllocatedResources::clone(&a.resources) });
    rig.server.place(&a, &job);
    let running = rig
        .server
        .alloc(a.id, "a service of the network", |u| u.services.as_ref().is_some_and(|s| !s.is_empty()))
        .await;
    let status = running.network_status.expect("where it is reached");
    assert_eq!((status.interface_name.as_str(), status.address.as_str()), ("eth0", "10.77.0.9"));
    let service = &running.services.expect("services")[0];
    assert_eq!((service.address.as_str(), service.port), ("10.77.0.9", 80));
    let told = fs::read_to_string(format!("{}.ADD", asked.display())).expect("what the plugin was told");
    assert!(told.contains(r#""hostPort":23456"#) && told.contains(r#""containerPort":80"#), "{told}");
    let id = a.id;
    let line = |command: &str| format!("{command} {id} IgnoreUnknown=1");
    // Once for both tasks, and once more to learn whether its word counts later.
    eventually("the first look", || calls(&asked) == [line("ADD"), line("CHECK")]).await;

    // The next agent finds it as it is.
    node.stop().await;
    let node = ready(&rig, &config).await;
    rig.server.status(a.id, ClientStatus::Running).await;
    eventually("the second look, for both tasks", || calls(&asked) == [line("ADD"), line("CHECK"), line("CHECK")])
        .await;
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    eventually("the network to be left", || !config.networks_dir().join(id.to_string()).exists()).await;
    assert_eq!(calls(&asked), ["ADD", "CHECK", "CHECK", "DEL"].map(line));
    end(&rig, node).await;
}

/// Runs two tasks in the network `mine` until they have started and its plugin was asked for the first time.
async fn two_in_mine(rig: &Rig, config: &ClientConfig, asked: &Path) -> (Client, Allocation) {
    let node = ready(rig, config).await;
    let (a, job) = connected("cni/mine", "echo $$ >> /alloc/data/$NOMAD_TASK_NAME; exec sleep 600", &["one", "two"]);
    rig.server.place(&a, &job);
    rig.server.status(a.id, ClientStatus::Running).await;
    eventually("the first look", || asked_for(asked) == ["ADD", "CHECK"]).await;
    // Who was told what is in the record once it is written; the next agent goes by it.
    let record = config.networks_dir().join(a.id.to_string()).join("record.json");
    eventually("what was learnt", || !fs::read_to_string(&record).unwrap_or_default().contains(r#""checks":null"#))
        .await;
    (node, a)
}

/// Stops the tasks, waits until their network is gone, ends the node.
async fn over(rig: &Rig, config: &ClientConfig, node: Client, a: &Allocation) {
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    eventually("the network to be left", || !config.networks_dir().join(a.id.to_string()).exists()).await;
    end(rig, node).await;
}

fn asked_for(file: &Path) -> Vec<String> {
    calls(file).iter().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

/// How often each of two tasks was started.
fn starts(rig: &Rig, a: &Allocation) -> [usize; 2] {
    ["one", "two"].map(|task| {
        fs::read_to_string(rig.alloc_dir(a.id).join("alloc/data").join(task)).unwrap_or_default().lines().count()
    })
}

fn said(update: &model::AllocClientUpdate, task: &str, kind: &str, part: &str) -> bool {
    update.task_states[task].events.iter().any(|e| e.kind == kind && e.display_message.contains(part))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_found_broken_is_joined_again() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let asked = install(&rig);
    let (node, a) = two_in_mine(&rig, &config, &asked).await;
    node.stop().await;
    fs::write(asked.with_file_name("broken"), "").expect("broken");
    let node = ready(&rig, &config).await;
    let both = |u: &model::AllocClientUpdate| {
        ["one", "two"].iter().all(|t| said(u, t, "Network", "joined again") && said(u, t, "Network", "no cable"))
    };
    rig.server.alloc(a.id, "the event of the broken network", both).await;
    assert_eq!(asked_for(&asked), ["ADD", "CHECK", "CHECK", "DEL", "ADD"], "once for both");
    assert_eq!(starts(&rig, &a), [1, 1], "they run on");

    // Another address: what the tasks have been told of it is wrong.
    node.stop().await;
    fs::write(asked.with_file_name("broken"), "").expect("broken");
    fs::write(asked.with_file_name("address"), "10.77.0.10").expect("address");
    let node = ready(&rig, &config).await;
    let moved = |u: &model::AllocClientUpdate| {
        u.network_status.as_ref().is_some_and(|s| s.address == "10.77.0.10")
            && ["one", "two"].iter().all(|t| said(u, t, "Restart Signaled", "another address"))
    };
    rig.server.alloc(a.id, "the restart with another address", moved).await;
    eventually("the second starts", || starts(&rig, &a) == [2, 2]).await;
    over(&rig, &config, node, &a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_agent_has_not_learnt_of_a_network_is_learnt_by_the_next() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let asked = install(&rig);
    let (node, a) = two_in_mine(&rig, &config, &asked).await;
    node.stop().await;
    // As a kill between the creation and the first look leaves it.
    let record = config.networks_dir().join(a.id.to_string()).join("record.json");
    let mut unlearnt: serde_json::Value =
        serde_json::from_slice(&fs::read(&record).expect("the record")).expect("JSON");
    unlearnt["checks"] = serde_json::Value::Null;
    fs::write(&record, unlearnt.to_string()).expect("the record as it was before");
    let node = ready(&rig, &config).await;
    eventually("what the next agent learns", || {
        !fs::read_to_string(&record).unwrap_or_default().contains(r#""checks":null"#)
    })
    .await;
    node.stop().await;
    fs::write(asked.with_file_name("broken"), "").expect("broken");
    let node = ready(&rig, &config).await;
    rig.server.alloc(a.id, "the network joined again", |u| said(u, "one", "Network", "joined again")).await;
    assert_eq!(starts(&rig, &a), [1, 1], "they run on");
    over(&rig, &config, node, &a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_network_that_cannot_be_joined_again_is_made_anew() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let asked = install(&rig);
    let (node, a) = two_in_mine(&rig, &config, &asked).await;
    node.stop().await;
    for file in ["broken", "full"] {
        fs::write(asked.with_file_name(file), "").expect("file");
    }
    let node = ready(&rig, &config).await;
    let lost = |u: &model::AllocClientUpdate| {
        ["one", "two"]
            .iter()
            .all(|t| ["no cable", "no address left"].iter().all(|why| said(u, t, "Restart Signaled", why)))
    };
    rig.server.alloc(a.id, "the restart, and both reasons", lost).await;
    eventually("the second starts", || starts(&rig, &a) == [2, 2]).await;
    eventually("the first look at the new one", || {
        asked_for(&asked).ends_with(&["ADD".to_owned(), "CHECK".to_owned()])
    })
    .await;
    assert_eq!(
        asked_for(&asked).iter().filter(|call| *call == "ADD").count(),
        3,
        "the first, the refused, the new one: {:?}",
        calls(&asked)
    );
    over(&rig, &config, node, &a).await;
    assert_eq!(asked_for(&asked).last().map(String::as_str), Some("DEL"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_whose_namespace_is_gone_is_made_anew() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let asked = install(&rig);
    let (node, a) = two_in_mine(&rig, &config, &asked).await;
    node.stop().await;
    let namespace = config.networks_dir().join(a.id.to_string()).join("ns");
    rustix::mount::unmount(&namespace, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    let node = ready(&rig, &config).await;
    let lost = |u: &model::AllocClientUpdate| {
        ["one", "two"].iter().all(|t| said(u, t, "Restart Signaled", "namespace is gone"))
    };
    rig.server.alloc(a.id, "the restart in a new network", lost).await;
    eventually("the second starts", || starts(&rig, &a) == [2, 2]).await;
    eventually("the first look at the new one", || asked_for(&asked) == ["ADD", "CHECK", "DEL", "ADD", "CHECK"]).await;
    over(&rig, &config, node, &a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_refuses_what_it_has_just_made_is_not_believed() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let asked = install(&rig);
    for file in ["broken", "always"] {
        fs::write(asked.with_file_name(file), "").expect("file");
    }
    let (node, a) = two_in_mine(&rig, &config, &asked).await;
    node.stop().await;
    let node = ready(&rig, &config).await;
    rig.server.status(a.id, ClientStatus::Running).await;
    eventually("the task to be known again", || {
        node.handle().running(a.id, "one") && node.handle().running(a.id, "two")
    })
    .await;
    rig.server.stop_alloc(a.id);
    let ended = rig.server.status(a.id, ClientStatus::Complete).await;
    eventually("the network to be left", || !config.networks_dir().join(a.id.to_string()).exists()).await;
    assert_eq!(asked_for(&asked), ["ADD", "CHECK", "DEL"]);
    assert_eq!((starts(&rig, &a), said(&ended, "one", "Network", "")), ([1, 1], false));
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_has_left_unfinished_is_ended_by_the_next() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let asked = install(&rig);
    let id = uuid::Uuid::new_v4();
    let dir = config.networks_dir().join(id.to_string());
    fs::create_dir_all(&dir).expect("directory");
    // As an agent leaves it that is killed while it waits for the plugin; whose namespace has gone with the machine.
    let list = json!({"cniVersion": "0.4.0", "name": "mine", "plugins": [{"type": "fake"}]});
    let record = json!({"path": dir.join("ns"), "list": list, "args": "K=V"});
    fs::write(dir.join("record.json"), record.to_string()).expect("record");
    fs::write(dir.join("ns"), "").expect("file");
    let node = ready(&rig, &config).await;
    eventually("what is left to be ended", || !dir.exists()).await;
    assert_eq!(calls(&asked), [format!("DEL {id} K=V")]);
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_connected_is_refused_by_name() {
    let rig = Rig::new().await;
    let Some(config) = config(&rig) else { return };
    let node = ready(&rig, &config).await;
    rig.driver_ready("raw_exec").await;
    let (unknown, job) = connected("cni/other", "true", &["t"]);
    rig.server.place(&unknown, &job);
    let (mut plain, mut job) = connected("none", "true", &["t"]);
    job.task_groups[0].tasks[0].driver = "raw_exec".into();
    plain.job_id = "plain".into();
    job.id = "plain".into();
    rig.server.place(&plain, &job);
    for (id, expected) in
        [(unknown.id, "no CNI network \"other\""), (plain.id, "driver \"raw_exec\" of task \"t\" cannot join")]
    {
        let failed = rig.server.status(id, ClientStatus::Failed).await;
        let said: Vec<&str> = failed.task_states["t"].events.iter().map(|e| e.display_message.as_str()).collect();
        assert!(said.iter().any(|m| m.contains(expected)), "{expected}: {said:#?}");
        assert!(!config.networks_dir().join(id.to_string()).exists());
    }
    end(&rig, node).await;
}
