//! Plugins on a machine without cgroups: what they leave stays below their keeper.

use super::*;

/// The process below which a plugin runs where there are no cgroups, and what has no other parent.
fn keepers(rig: &Rig) -> Vec<i32> {
    processes(rig.dir.path()).into_iter().filter(|(_, line)| line.contains(" keep {")).map(|(pid, _)| pid).collect()
}

#[test]
fn without_cgroups_orphans_stay_below_the_keeper_of_their_plugin() {
    let hides = "mount -t tmpfs none /sys/fs/cgroup || exit 77; exec \"$0\" \"$@\"";
    let me = std::env::current_exe().expect("own path");
    let mut inside = std::process::Command::new("unshare");
    inside.args(["-m", "sh", "-c", hides]).arg(me).args([
        "--exact",
        "--ignored",
        "leaks::without_cgroups::inside_without_cgroups",
    ]);
    let ended = inside.output().expect("unshare");
    let text = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if ended.status.code() == Some(77) || text.contains("unshare failed") {
        skip::cannot(&format!("the cgroups cannot be hidden: {text}"));
        return;
    }
    assert!(ended.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the test above runs it where there are no cgroups"]
async fn inside_without_cgroups() {
    assert_eq!(host::cgroup::mode(), host::cgroup::Mode::Off, "the test above hides them");
    let parent = |pid: i32| executor_client::ProcessStat::of(pid).map_or(0, |stat| stat.ppid);
    let (go, node) = Go::ready().await;
    let neighbour = go.place(faulty(&[], 0));
    go.running(neighbour, 0).await;
    eventually("the neighbour's workload", || go.workloads(neighbour).len() == 1).await;
    let spared = go.workloads(neighbour);
    assert_eq!(keepers(&go.rig).len(), 1);
    let keeper = keepers(&go.rig)[0];
    assert_eq!(go.plugins().into_iter().map(parent).collect::<Vec<_>>(), [keeper]);
    // The workload begins a daemon that says nothing of its task: it has no other parent then.
    let started = async || {
        let id = go.place(faulty_with(&[], 1, super::daemon()));
        go.running(id, 0).await;
        eventually("the workload", || go.workloads(id).len() == 1).await;
        let held = go.workloads(id)[0];
        fs::write(go.rig.alloc_dir(id).join("alloc/data/go"), "").expect("told");
        eventually("the daemon", || go.workloads(id).len() == 2).await;
        let daemon = go.workloads(id).into_iter().find(|pid| *pid != held).expect("there");
        eventually("the daemon to have lost its parents", || parent(daemon) == keeper).await;
        (id, held, daemon)
    };
    let line = async |node: &Client, daemon: i32| {
        let audit = node.handle().audit(false).await;
        assert!(audit.balanced, "{audit:#?}");
        audit.findings.into_iter().find(|f| f.what.starts_with(&format!("{daemon} "))).expect("the books name it")
    };
    let (mut id, mut held, mut daemon) = started().await;
    let mut tries = 0..20;
    // A look while it left has seen whose it is: then it ends with its task.
    while line(&node, daemon).await.alloc_id == id {
        tries.next().expect("one that nobody saw while it left");
        go.stop(id).await;
        eventually("the daemon's end", || !alive(daemon)).await;
        (id, held, daemon) = started().await;
    }
    let books = async |node: &Client| {
        let line = line(node, daemon).await;
        assert!(line.reason.contains("plugin \"go-like\"") && line.alloc_id.is_nil(), "{line:?}");
    };
    books(&node).await;
    // The workload of a killed executor is the keeper's as well. Whose it was is known: it ends before the task is
    // started again.
    let executor = parent(held);
    kill(executor);
    eventually("the workload to have another parent, or to end", || parent(held) != executor).await;
    go.running(id, 1).await;
    assert!(!alive(held), "it has ended before the task was started again");
    assert_eq!(go.workloads(neighbour), spared, "the neighbour is not touched");
    // It outlives plugin and agent, and what is below it is known to the next ones.
    let killed = go.plugins();
    killed.iter().copied().for_each(kill);
    // Before that the agent may still call the driver healthy, and have left the plugin's socket where it is.
    eventually("the next plugin", || go.plugins().iter().any(|pid| !killed.contains(pid))).await;
    go.rig.driver_ready(DRIVER).await;
    crash(&go, node, true).await;
    let node = go.node().await;
    assert_eq!(parent(daemon), keeper);
    books(&node).await;
    // As long as another task of the plugin runs the daemon might be that one's. Then it ends, and the keepers end with
    // what they have kept.
    go.stop(id).await;
    assert!(alive(daemon));
    assert_eq!(go.workloads(neighbour), spared, "the neighbour is not touched");
    go.stop(neighbour).await;
    poll(
        "their end",
        async || if alive(daemon) || alive(keeper) { Err(node.handle().audit(true).await) } else { Ok(()) },
    )
    .await;
    go.end(node, &[]).await;
}
