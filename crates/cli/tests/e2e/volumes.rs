//! Dynamic host volumes: made by `mkdir` and by an executable, mounted by tasks, and there after whatever dies.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use testkit::Dir;

use crate::{
    agent::{Agent, drover, until},
    remote::copy,
};

/// An executable that makes directories. Files beside it steer it: with `broken` it refuses, with `slow` it waits.
fn plugin(dir: &Path) {
    let script = r#"#!/bin/sh
case $1 in
fingerprint) echo '{"version": "1.2.0"}' ;;
create)
  if [ -e "$DHV_PLUGIN_DIR/../broken" ]; then echo '{"error": "no disk left"}'; exit 1; fi
  mkdir "$DHV_PLUGIN_DIR/../busy" || echo beside >> "$DHV_PLUGIN_DIR/../overlaps"
  while [ -e "$DHV_PLUGIN_DIR/../slow" ]; do sleep 0.05; done
  mkdir -p "$DHV_VOLUMES_DIR/by-disk-$DHV_VOLUME_ID"
  echo "$DHV_OPERATION $DHV_VOLUME_NAME $DHV_CAPACITY_MAX_BYTES $DHV_PARAMETERS" \
    > "$DHV_VOLUMES_DIR/by-disk-$DHV_VOLUME_ID/made"
  chmod -R a+rwX "$DHV_VOLUMES_DIR/by-disk-$DHV_VOLUME_ID"
  rmdir "$DHV_PLUGIN_DIR/../busy"
  echo "{\"path\": \"$DHV_VOLUMES_DIR/by-disk-$DHV_VOLUME_ID\", \"bytes\": 1048576}" ;;
delete) rm -r "$DHV_CREATED_PATH" ;;
esac
"#;
    let plugins = dir.join("plugins");
    fs::create_dir_all(&plugins).expect("a directory");
    testkit::program(&plugins.join("disk"), script);
}

struct World {
    agent: Agent,
    dir: Dir,
}

impl World {
    fn new() -> Self {
        let dir = Dir::new("volumes");
        plugin(dir.path());
        let (volumes, plugins) = (dir.path().join("made"), dir.path().join("plugins"));
        let roles = format!(
            "server {{\n  enabled = true\n}}\nclient {{\n  enabled = true\n  host_volumes_dir = {volumes:?}\n  \
             host_volume_plugin_dir = {plugins:?}\n}}"
        );
        Self { agent: Agent::of_roles(&roles, ""), dir }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    }

    /// The file of a volume.
    fn spec(&self, name: &str, plugin: &str, more: &str) -> String {
        let text = format!("name = {name:?}\ntype = \"host\"\nplugin_id = {plugin:?}\n{more}\n");
        self.file(&format!("{name}.hcl"), &text).display().to_string()
    }

    fn volumes(&self) -> Vec<serde_json::Value> {
        let all = self.agent.get("/v1/volumes?type=host&namespace=*").expect("volumes");
        all.as_array().cloned().unwrap_or_default()
    }

    fn id(&self, name: &str) -> String {
        let all = self.volumes();
        let found = all.iter().find(|volume| volume["Name"] == name).unwrap_or_else(|| panic!("{name}: {all:?}"));
        found["ID"].as_str().expect("an id").to_owned()
    }

    fn said(&self, args: &[&str]) -> String {
        let out = self.agent.cli(args);
        assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8_lossy(&out.stderr).into_owned()
    }
}

const JOB: &str = r#"job "db" {
  group "g" {
    restart {
      delay    = "1s"
      attempts = 100
    }
    volume "store" {
      type   = "host"
      source = "data"
      sticky = true
    }
    task "t" {
      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo start >> /store/log; cat /store/log; exec sleep 600"]
      }
      volume_mount {
        volume      = "store"
        destination = "/store"
      }
    }
  }
}
"#;

#[test]
fn a_volume_is_made_used_kept_and_removed() {
    let mut w = World::new();
    let node = w.agent.get("/v1/nodes").expect("nodes")[0]["ID"].as_str().expect("an id").to_owned();
    let attributes = w.agent.get(&format!("/v1/node/{node}")).expect("the node")["Attributes"].clone();
    assert_eq!(attributes["plugins.host_volume.disk.version"], "1.2.0", "{attributes}");
    assert_eq!(attributes["plugins.host_volume.mkdir.version"], "0.0.1");
    // A job that waits for its volume starts when it is made.
    w.agent.run(JOB);
    until("the reason", || {
        let why = w.agent.cli_ok(&["job", "status", "db"]);
        why.contains("missing compatible host volumes").then_some(())
    });
    let spec = w.spec("data", "mkdir", "parameters {\n  mode = \"0777\"\n}");
    let said = w.agent.cli_ok(&["volume", "create", &spec]);
    assert_eq!(said, format!("==> Created host volume data with ID {}\n", w.id("data")));
    let alloc = w.agent.alloc("db", "running");
    until("what the task sees", || (w.agent.logs(&alloc, "t") == "start\n").then_some(()));
    let (id, path) = (w.id("data"), w.dir.path().join("made"));
    let path = path.join(&id);
    assert_eq!(fs::metadata(&path).expect("a directory").permissions().mode() & 0o7777, 0o777);
    let shown = w.agent.cli_ok(&["volume", "status", &id[..8]]);
    assert!(shown.contains(&path.display().to_string()) && shown.contains(&alloc["ID"].as_str().expect("id")[..8]));
    // Both tell how long ago things were: asked in different seconds they differ.
    let same = || w.agent.cli_ok(&["status", &id[..8]]) == w.agent.cli_ok(&["volume", "status", &id[..8]]);
    until("the same from both commands", || same().then_some(()));
    let of_node = w.agent.cli_ok(&["node", "status", "-verbose", &node]);
    assert!(of_node.contains("Host Volumes") && of_node.contains(&id[..8]), "{of_node}");
    let taken = w.said(&["volume", "create", &spec]);
    assert!(taken.contains("1 with a volume of that name"), "{taken}");
    let used = w.said(&["volume", "delete", &id]);
    assert!(used.contains("in use by allocations"), "{used}");

    // The agent dies; the task runs on, and finds its volume at its next start without a word of the servers.
    w.agent.kill();
    w.agent.launch();
    let alloc = w.agent.alloc("db", "running");
    w.agent.cli_ok(&["alloc", "restart", alloc["ID"].as_str().expect("an id")]);
    until("a second start", || w.agent.logs(&alloc, "t").ends_with("start\nstart\n").then_some(()));
    // The job goes, and what comes later goes on with the data.
    w.agent.cli_ok(&["job", "stop", "db"]);
    until("the end", || w.agent.allocs("db").iter().all(|a| a["ClientStatus"] == "complete").then_some(()));
    let claims = w.agent.cli_ok(&["volume", "claim", "list", "-job", "db"]);
    assert!(claims.contains("data") && claims.contains(&id[..8]), "{claims}");
    w.agent.run(JOB);
    let alloc = w.agent.alloc("db", "running");
    until("a third start", || (w.agent.logs(&alloc, "t") == "start\n".repeat(3)).then_some(()));
    w.agent.cli_ok(&["job", "stop", "-purge", "db"]);
    assert_eq!(w.agent.cli_ok(&["volume", "claim", "list"]), "No volume claims\n");
    until("nobody uses it", || w.agent.cli(&["volume", "delete", &id]).status.success().then_some(()));
    assert!(!path.exists() && w.volumes().is_empty());
    assert_eq!(w.agent.cli_ok(&["volume", "status"]), "\nDynamic Host Volumes\nNo dynamic host volumes\n");

    // A directory that is there already is offered, and stays.
    let own = w.file("own-marker", "mine").with_file_name("own");
    fs::create_dir(&own).expect("a directory");
    let more = format!("node_id = {node:?}\nhost_path = {:?}", own.display().to_string());
    let spec = w.spec("own", "", &more);
    w.agent.cli_ok(&["volume", "register", &spec]);
    assert_eq!(w.agent.get(&format!("/v1/node/{node}")).expect("the node")["HostVolumes"]["own"]["ID"], w.id("own"));
    w.agent.cli_ok(&["volume", "delete", &w.id("own")]);
    assert!(own.exists());
    let absent = w.spec("absent", "", &format!("node_id = {node:?}\nhost_path = \"/absent/here\""));
    let why = w.said(&["volume", "register", &absent]);
    assert!(why.contains("/absent/here is no directory of this node") && w.volumes().is_empty(), "{why}");
}

#[test]
fn an_executable_makes_volumes_and_none_is_made_twice_or_lost() {
    let mut w = World::new();
    let more = "capacity_max = \"1MiB\"\nparameters {\n  tier = \"fast\"\n}";
    let spec = w.spec("scratch", "disk", more);
    let broken = w.file("broken", "");
    let why = w.said(&["volume", "create", &spec]);
    assert!(why.contains("could not create volume") && why.contains("no disk left"), "{why}");
    assert!(w.volumes().is_empty(), "nothing is left of it");
    fs::remove_file(broken).expect("whole again");
    w.agent.cli_ok(&["volume", "create", &spec]);
    let id = w.id("scratch");
    let volume = w.agent.get(&format!("/v1/volume/host/{id}")).expect("the volume");
    let path = PathBuf::from(volume["HostPath"].as_str().expect("a path"));
    let made = fs::read_to_string(path.join("made")).expect("what it was asked");
    assert_eq!(made, "create scratch 1048576 {\"tier\":\"fast\"}\n");
    assert_eq!((&volume["CapacityBytes"], &volume["State"]), (&1_048_576.into(), &"ready".into()));

    // The machine restarts: what the plugin had mounted is not there before it is asked again, and a task waits for it.
    w.agent
        .run(&JOB.replace("\"data\"", "\"scratch\"").replace("sticky = true", "").replace("/store/log", "/store/made"));
    let alloc = w.agent.alloc("db", "running");
    until("what the task sees", || w.agent.logs(&alloc, "t").ends_with("start\n").then_some(()));
    w.agent.kill();
    fs::rename(&path, path.with_extension("unmounted")).expect("it is gone");
    let slow = w.file("slow", "");
    w.agent.launch();
    let of_alloc = alloc["ID"].as_str().expect("an id").to_owned();
    w.agent.alloc("db", "running");
    w.agent.cli_ok(&["alloc", "restart", &of_alloc]);
    until("it waits", || {
        w.agent.cli_ok(&["alloc", "status", &of_alloc]).contains("Waiting for host volume scratch").then_some(())
    });
    assert!(!path.exists(), "nothing has been started on what is not there");
    fs::remove_file(slow).expect("fast again");
    until("it is there again", || path.join("made").exists().then_some(()));
    until("another start", || w.agent.logs(&alloc, "t").ends_with("}\nstart\n").then_some(()));
    fs::remove_dir_all(path.with_extension("unmounted")).expect("what stood for the mounted one");
    w.agent.cli_ok(&["job", "stop", "-purge", "db"]);
    until("nobody uses it", || w.agent.cli(&["volume", "delete", &id]).status.success().then_some(()));
    assert!(!path.exists());

    // Who asks and the agent die while it is made; the executable lives on. The next agent waits for it.
    let slow = w.file("slow", "");
    let mut asking = Command::new(drover());
    asking.args(["volume", "create", &spec]).env("NOMAD_ADDR", w.agent.address());
    let mut asking =
        asking.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().expect("it");
    until("its plugin is at work", || w.dir.path().join("busy").exists().then_some(()));
    w.agent.kill();
    let _ = asking.kill();
    asking.wait().expect("it has ended");
    w.agent.launch();
    w.agent.wait_for_driver("raw_exec");
    // Time enough for a second executable to begin, if nothing held it back.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(w.volumes()[0]["State"], "pending", "it is known, and not there yet");
    fs::remove_file(slow).expect("fast again");
    until("it is made", || (w.volumes()[0]["State"] == "ready").then_some(()));
    assert!(!w.dir.path().join("overlaps").exists(), "two worked on one volume");
    let id = w.id("scratch");
    w.agent.cli_ok(&["volume", "delete", &id]);
    assert_eq!(fs::read_dir(w.dir.path().join("made")).expect("list").count(), 0);
}

/// A replacement on the same node writes when its predecessor has ended, however long that takes.
#[test]
fn a_single_writer_hands_over_to_its_successor() {
    let w = World::new();
    let more = "capability {\n  access_mode = \"single-node-single-writer\"\n  attachment_mode = \"file-system\"\n}\n\
                parameters {\n  mode = \"0777\"\n}";
    let spec = w.spec("data", "mkdir", more);
    w.agent.cli_ok(&["volume", "create", &spec]);
    let job = |version: u32| {
        let script = format!(
            "trap 'sleep 1; echo end {version} >> /store/log; exit 0' TERM; echo start {version} >> /store/log; \
             while :; do sleep 0.05; done"
        );
        let task = JOB.replace("echo start >> /store/log; cat /store/log; exec sleep 600", &script);
        task.replace("sticky = true", "")
            .replace("driver = \"exec\"", "driver = \"exec\"\n      kill_timeout = \"20s\"")
            .replace("kill_timeout = \"20s\"", "kill_timeout = \"20s\"\n      kill_signal  = \"SIGTERM\"")
    };
    w.agent.run(&job(1));
    let log = || fs::read_to_string(w.dir.path().join("made").join(w.id("data")).join("log")).unwrap_or_default();
    until("the first writes", || (log() == "start 1\n").then_some(()));
    w.agent.run(&job(2));
    until("the second writes", || log().ends_with("start 2\n").then_some(()));
    assert_eq!(log(), "start 1\nend 1\nstart 2\n");
    w.agent.cli_ok(&["job", "stop", "-detach", "-purge", "db"]);
    let of_node = |pool: &str| w.agent.cli_ok(&["volume", "status", "-node-pool", pool]);
    assert!(of_node("default").contains("data") && !of_node("other").contains("data"));
}

/// The state is from before the volume: its node tells of it, and the task that uses it goes on.
#[test]
fn servers_restored_from_an_old_snapshot_know_the_volumes_of_their_nodes() {
    let mut w = World::new();
    let (data, snapshot) = (w.agent.dir().join("data/server"), w.agent.dir().join("snapshot"));
    w.agent.kill();
    copy(&data, &snapshot);
    w.agent.launch();
    let spec = w.spec("data", "mkdir", "parameters {\n  mode = \"0777\"\n}");
    w.agent.cli_ok(&["volume", "create", &spec]);
    w.agent.run(JOB);
    let alloc = w.agent.alloc("db", "running");
    until("what the task sees", || (w.agent.logs(&alloc, "t") == "start\n").then_some(()));
    let id = w.id("data");
    w.agent.kill();
    fs::remove_dir_all(&data).expect("the state");
    copy(&snapshot, &data);
    w.agent.launch();
    until("the node to tell what it has", || {
        let recovery = w.agent.get("/v1/operator/recovery")?;
        (recovery["Answered"].as_array().map_or(0, Vec::len) == 1).then_some(())
    });
    let _ = w.agent.cli(&["operator", "recover", "-yes"]);
    until("the volume", || {
        let all = w.volumes();
        (all.len() == 1 && all[0]["ID"] == *id && all[0]["State"] == "ready").then_some(())
    });
    assert_eq!(w.agent.alloc("db", "running")["ID"], alloc["ID"], "the same allocation");
    let claims = w.agent.cli_ok(&["volume", "claim", "list", "-verbose"]);
    assert!(claims.contains(alloc["ID"].as_str().expect("an id")) && claims.contains(&id), "{claims}");
    w.agent.cli_ok(&["alloc", "restart", alloc["ID"].as_str().expect("an id")]);
    until("a second start", || w.agent.logs(&alloc, "t").ends_with("start\nstart\n").then_some(()));
    w.agent.cli_ok(&["job", "stop", "-purge", "db"]);
    until("nobody uses it", || w.agent.cli(&["volume", "delete", &id]).status.success().then_some(()));
}
