//! Network mode `bridge` with Debian's CNI plugins: two allocations with the same port inside are reached by their
//! ports on the host, an agent is killed in the middle of everything, a cable is cut while no agent is there,
//! containers of a Docker engine are connected by the same plugins, and nothing is left in the end: no namespace,
//! cable, rule, lease or mount.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    api::text,
    cluster::Agent,
    dockerd::{self, Daemon, IMAGE},
    job::Job,
};
use crate::{
    local::until,
    packages::{self, Wanted},
    process::Run,
};

const BOUND: Duration = Duration::from_secs(90);
const PLUGINS: &str = "/usr/lib/cni";
/// Nobody else's, so that whatever is found there is this check's.
const BRIDGE: &str = "drvinterop0";
const SUBNET: &str = "172.29.112.0/24";
const LEASES: &str = "/var/lib/cni/networks/drvinterop0";

/// What is the machine's and not the agent's.
struct Machine {
    plugins: PathBuf,
    /// Chains and rules, and forwarding, as they were.
    rules: Vec<(&'static str, String)>,
    forwarding: String,
}

const TABLES: [&str; 2] = ["filter", "nat"];
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

fn all_rules() -> Result<Vec<(&'static str, String)>> {
    let mut all = Vec::new();
    for table in TABLES {
        let listed = Run::new("iptables", ["-w", "-t", table, "-S"]).output()?;
        all.extend(listed.lines().map(|line| (table, line.to_owned())));
    }
    Ok(all)
}

impl Machine {
    /// The plugins, the last of which waits while a file is there.
    fn prepare() -> Result<Self> {
        let plugins = std::env::temp_dir().join(format!("drover-interop-plugins-{}", std::process::id()));
        fs::create_dir_all(&plugins)?;
        for entry in fs::read_dir(PLUGINS)?.flatten().filter(|e| e.file_name() != "portmap") {
            symlink(entry.path(), plugins.join(entry.file_name()))?;
        }
        let machine = Self { plugins, rules: all_rules()?, forwarding: fs::read_to_string(FORWARDING)? };
        let waiting = format!(
            "#!/bin/sh\nif [ \"$CNI_COMMAND\" = ADD ] && [ -e {0} ]; then touch {1}; while [ -e {0} ]; do sleep 0.05; \
                done; fi\nexec {PLUGINS}/portmap\n",
            machine.hold().display(),
            machine.held().display()
        );
        let file = machine.plugins.join("portmap");
        fs::write(&file, waiting)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        Ok(machine)
    }
    fn hold(&self) -> PathBuf {
        self.plugins.join("hold")
    }
    fn held(&self) -> PathBuf {
        self.plugins.join("held")
    }
    /// Addresses that are given away, with who has them.
    fn leases() -> Vec<(String, String)> {
        let files = fs::read_dir(LEASES).into_iter().flatten().flatten();
        let named = files.filter_map(|e| Some((e.file_name().into_string().ok()?, fs::read_to_string(e.path()).ok()?)));
        named
            .filter(|(name, _)| name.starts_with("172."))
            .map(|(ip, text)| (ip, text.lines().next().unwrap_or_default().trim().to_owned()))
            .collect()
    }
    /// Ends of cables at the bridge.
    fn cables() -> usize {
        fs::read_dir(format!("/sys/class/net/{BRIDGE}/brif")).map_or(0, |dir| dir.flatten().count())
    }
    /// Rules that speak of any of these.
    fn rules(of: &[String]) -> Result<Vec<String>> {
        let rules = all_rules()?.into_iter().map(|(_, rule)| rule);
        Ok(rules.filter(|rule| of.iter().any(|what| rule.contains(what.as_str()))).collect())
    }
    /// Takes away what the plugins keep for themselves, where it was not there before: empty chains, and the rules that
    /// lead there.
    fn tidy(&self) -> Result<()> {
        let theirs = |rule: &str| rule.contains("CNI-") || rule.contains("NOMAD-ADMIN");
        let mut new = all_rules()?;
        new.retain(|rule| !self.rules.contains(rule) && theirs(&rule.1));
        for (table, rule) in new.iter().filter(|(_, rule)| rule.starts_with("-A ")) {
            let rule = format!("iptables -w -t {table} -D {}", &rule[3..]);
            let _ = Run::new("sh", ["-c", &rule]).succeeds();
        }
        for (table, chain) in new.iter().filter_map(|(table, rule)| Some((table, rule.strip_prefix("-N ")?))) {
            let _ = Run::new("iptables", ["-w", "-t", table, "-X", chain]).succeeds();
        }
        Ok(fs::write(FORWARDING, &self.forwarding)?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Run::new("ip", ["link", "del", BRIDGE]).succeeds();
        drop(fs::remove_dir_all(&self.plugins));
        drop(fs::remove_dir_all(LEASES));
        drop(self.tidy());
    }
}

/// The check.
pub(crate) fn check() -> Result<()> {
    let wanted = [
        Wanted::new("/usr/lib/cni/bridge", "containernetworking-plugins"),
        Wanted::new("iptables", "iptables"),
        Wanted::new("ip", "iproute2"),
        Wanted::new("/usr/bin/python3", "python3"),
    ];
    packages::need_root("network namespaces need root")?;
    packages::need(&wanted)?;
    dockerd::need(&[])?;
    let mut daemon = Daemon::new(6)?;
    daemon.up()?;
    daemon.import_image()?;
    // Holds the network of a group.
    let tree = daemon.dir().join("tree.tar").display().to_string();
    daemon.docker(&["import", "-c", "CMD [\"/bin/sleep\", \"1000000\"]", &tree, "holder:1"])?;
    let machine = Machine::prepare()?;
    let more = format!(
        "client {{\n  cni_path = {:?}\n  bridge_network_name = {BRIDGE:?}\n  bridge_network_subnet = {SUBNET:?}\n}}\n\
         plugin \"docker\" {{\n  config {{\n    endpoint = {:?}\n    infra_image = \"holder:1\"\n  }}\n}}",
        machine.plugins,
        daemon.url()
    );
    let mut agent = Agent::start("cni", &[], &more)?;
    let result = story(&mut agent, &machine, &daemon)
        .with_context(|| format!("the end of the agent's log:\n{}\n{}", agent.log_tail(), daemon.log_tail()));
    // A failed check leaves nothing waiting either.
    drop(fs::remove_file(machine.hold()));
    drop(agent);
    result?;
    daemon.end()?;
    Ok(())
}

fn story(agent: &mut Agent, machine: &Machine, daemon: &Daemon) -> Result<()> {
    until("a ready node with drivers exec and docker", BOUND, || {
        Ok((agent.healthy(&["exec", "docker"])? == 1).then_some(()))
    })?;
    let node = agent.get(&format!("/v1/node/{}", agent.get("/v1/nodes")?[0]["ID"].as_str().unwrap_or_default()))?;
    let modes: Vec<&str> = node["NodeResources"]["NodeNetworks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|n| n["Mode"].as_str())
        .collect();
    ensure!(modes.contains(&"bridge"), "the node does not offer mode bridge: {modes:?}");

    agent.put("/v1/jobs", &job("pair", 2, "exec"))?;
    let pair = running(agent, "pair", 2)?;
    for place in &pair {
        reached(place)?;
    }
    ensure!(
        pair[0].inside != pair[1].inside && pair[0].port != pair[1].port,
        "the two have places of their own: {pair:?}"
    );

    // What stands does not need the agent, and the next one finds it.
    agent.crash()?;
    for place in &pair {
        reached(place)?;
    }
    agent.restart()?;
    ensure!(running(agent, "pair", 2)? == pair, "the same two in the same places");

    mended(agent, &pair[0], &pair)?;

    // Killed while a plugin is at work, which goes on by itself.
    fs::write(machine.hold(), "")?;
    agent.put("/v1/jobs", &job("late", 1, "exec"))?;
    until("a plugin at work", BOUND, || Ok(machine.held().exists().then_some(())))?;
    agent.crash_and_restart()?;
    fs::remove_file(machine.hold())?;
    let late = running(agent, "late", 1)?;
    reached(&late[0])?;
    let all: Vec<&Place> = pair.iter().chain(&late).collect();
    let leases = Machine::leases();
    ensure!(
        leases.len() == 3 && all.iter().all(|p| leases.contains(&(p.inside.clone(), p.alloc.clone()))),
        "each has one address: {leases:?} for {all:?}"
    );
    ensure!(Machine::cables() == 3, "each has one cable: {}", Machine::cables());
    for place in &pair {
        reached(place)?;
    }

    // The engine holds the namespace.
    agent.put("/v1/jobs", &job("boxed", 1, "docker"))?;
    let boxed = running(agent, "boxed", 1)?;
    reached(&boxed[0])?;
    agent.crash_and_restart()?;
    ensure!(running(agent, "boxed", 1)? == boxed, "the same container in the same place");
    reached(&boxed[0])?;
    ensure!(
        Machine::leases().contains(&(boxed[0].inside.clone(), boxed[0].alloc.clone())),
        "an address for the container's group"
    );

    for id in ["pair", "late", "boxed"] {
        agent.delete(&format!("/v1/job/{id}?purge=true"))?;
    }
    let names: Vec<String> =
        all.iter().copied().chain(&boxed).flat_map(|p| [p.alloc.clone(), format!("{}/32", p.inside)]).collect();
    until("everything to be gone", BOUND, || {
        // Between two looks at all rules; nothing waits for it.
        std::thread::sleep(Duration::from_millis(200));
        let dir = agent.dir().join("data/client/networks");
        let mounted = fs::read_to_string("/proc/mounts")?.lines().any(|l| l.contains(&*dir.to_string_lossy()));
        let left = fs::read_dir(&dir).map_or(0, |d| d.count());
        let (leases, cables, rules) = (Machine::leases(), Machine::cables(), Machine::rules(&names)?);
        let clean = !mounted && left == 0 && leases.is_empty() && cables == 0 && rules.is_empty();
        ensure!(clean, "mounted {mounted}, {left} records, leases {leases:?}, {cables} cables, rules {rules:#?}");
        Ok(Some(()))
    })?;
    daemon.until_empty()?;
    until("balanced books", BOUND, || {
        let audit = agent.get("/v1/client/audit")?;
        ensure!(audit["Balanced"] == true, "{audit:#}");
        Ok(Some(()))
    })
}

/// Events of an allocation's task that speak of its network.
fn told(agent: &Agent, place: &Place) -> Result<Vec<String>> {
    let events = agent.events(&place.alloc)?;
    let of_network = events.iter().filter(|e| e["Type"] == "Network" || e["Type"] == "Restart Signaled");
    Ok(of_network.filter_map(|e| e["DisplayMessage"].as_str().map(str::to_owned)).collect())
}

/// A cable that goes while no agent is there is laid anew by the next, with the same address and without a restart;
/// whose network is whole hears nothing, whatever plugins say of what they have just made themselves.
fn mended(agent: &mut Agent, broken: &Place, all: &[Place]) -> Result<()> {
    for place in all {
        let record = agent.dir().join("data/client/networks").join(&place.alloc).join("record.json");
        until("plugins that were asked for the first time", BOUND, || {
            let record: Value = serde_json::from_slice(&fs::read(&record)?)?;
            Ok(record["checks"].as_array().is_some_and(|checks| !checks.is_empty()).then_some(()))
        })?;
    }
    agent.crash()?;
    let namespace = agent.dir().join("data/client/networks").join(&broken.alloc).join("ns");
    Run::new("nsenter", [&*format!("--net={}", namespace.display()), "ip", "link", "del", "eth0"]).run()?;
    agent.restart()?;
    let said = until("the event of the network that was broken", BOUND, || Ok(told(agent, broken)?.pop()))?;
    ensure!(said.contains("plugin bridge refuses CHECK") && said.contains("has been joined again"), "it says {said:?}");
    for place in all {
        reached(place)?;
    }
    ensure!(running(agent, "pair", 2)? == all, "the same two in the same places");
    let others: Vec<String> = all
        .iter()
        .filter(|place| *place != broken)
        .map(|place| told(agent, place))
        .collect::<Result<Vec<_>>>()?
        .concat();
    ensure!(others.is_empty(), "whose network is whole is told {others:?}");
    let state = agent.task(&broken.alloc)?;
    ensure!(state["Restarts"] == 0, "the task was started again: {state}");
    Ok(())
}

/// Serves its own id on the port that its job calls `http`, which is 8000 for each of them.
fn job(id: &str, count: usize, driver: &str) -> Value {
    let serve = if driver == "docker" {
        "busybox httpd -f -p $NOMAD_PORT_http"
    } else {
        "python3 -m http.server $NOMAD_PORT_http"
    };
    let script = format!("echo $NOMAD_ALLOC_ID/$NOMAD_PORT_http > /local/id; cd /local; exec {serve}");
    let mut config = json!({"command": "/bin/sh", "args": ["-c", script]});
    if driver == "docker" {
        config["image"] = IMAGE.into();
    }
    let network = json!({"Mode": "bridge", "DynamicPorts": [{"Label": "http", "To": 8000}]});
    let job = Job::new(id, "service", driver, config).count(count).undeployed().group(json!({ "Networks": [network] }));
    job.task(json!({"KillTimeout": 1_000_000_000, "Resources": {"CPU": 50, "MemoryMB": 64}})).body()
}

/// Where an allocation is reached.
#[derive(Debug, PartialEq)]
struct Place {
    alloc: String,
    host: String,
    port: i64,
    inside: String,
}

fn running(agent: &Agent, job: &str, count: usize) -> Result<Vec<Place>> {
    until(&format!("{count} running allocations of {job} with addresses"), BOUND, || {
        let mut places = Vec::new();
        for alloc in agent.allocs(job)?.iter().filter(|a| a["ClientStatus"] == "running") {
            let full = agent.get(&format!("/v1/allocation/{}", text(&alloc["ID"])))?;
            let port = &full["AllocatedResources"]["Shared"]["Ports"][0];
            let inside = text(&full["NetworkStatus"]["Address"]);
            places.push(Place {
                alloc: text(&alloc["ID"]),
                host: text(&port["HostIP"]),
                port: port["Value"].as_i64().unwrap_or(0),
                inside,
            });
        }
        places.sort_by(|a, b| a.alloc.cmp(&b.alloc));
        Ok((places.len() == count && places.iter().all(|p| !p.inside.is_empty())).then_some(places))
    })
}

/// By its port on the host, and by its own address.
fn reached(place: &Place) -> Result<()> {
    for at in [format!("{}:{}", place.host, place.port), format!("{}:8000", place.inside)] {
        let expected = format!("{}/8000\n", place.alloc);
        until(&format!("{} to be reached at {at}", place.alloc), BOUND, || {
            let said = ureq::get(format!("http://{at}/id"))
                .config()
                .timeout_global(Some(Duration::from_secs(5)))
                .build()
                .call()?
                .body_mut()
                .read_to_string()?;
            ensure!(said == expected, "{at} says {said:?}");
            Ok(Some(()))
        })?;
    }
    Ok(())
}
