//! Charts of more than the last hour, from a real Prometheus.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    super::{cluster::Agent, job::Job},
    kit::{end, running},
    page::Page,
};
use crate::{
    local::{self, BOUND, free_ports, until},
    packages::{self, Wanted},
};

/// One that collects from an agent, and ends with the story.
struct Prometheus {
    child: Child,
    dir: PathBuf,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        local::remove(&self.dir);
    }
}

impl Prometheus {
    fn start(port: u16, agent: u16) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-web-prometheus-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let config = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: drover\n    metrics_path: /v1/metrics\n    \
             params:\n      format: [prometheus]\n    static_configs:\n      - targets: ['127.0.0.1:{agent}']\n"
        );
        fs::write(dir.join("prometheus.yml"), config)?;
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("log"))?)
            .spawn()
            .context("start prometheus")?;
        Ok(Self { child, dir })
    }
}

pub(super) fn history(page: &mut Page) -> Result<()> {
    packages::need(&[Wanted::new("prometheus", "prometheus")])?;
    let [port]: [u16; 1] = free_ports()?;
    let more = format!(
        "telemetry {{\n  prometheus_metrics = true\n}}\ndrover {{\n  prometheus_url = \"http://127.0.0.1:{port}\"\n}}\n"
    );
    let agent = Agent::start("web-history", &[], &more)?;
    agent.until_healthy(&["raw_exec"], 1)?;
    let job = Job::command("charted", "service", "raw_exec", "/bin/sleep", &["71033"]).undeployed();
    agent.submit(&job.task(json!({"Resources": {"CPU": 321, "MemoryMB": 45}})).body())?;
    running(&agent, "charted")?;
    let prometheus = Prometheus::start(port, agent.http_port())?;
    let point = until("a point from Prometheus", BOUND, || {
        let points = agent.list("/v1/metrics/history?seconds=300")?;
        Ok(points.into_iter().find(|point| point["AllocsRunning"] == 1))
    })?;
    ensure!(point["CpuUsed"] == 321 && point["MemoryUsedMB"] == 45 && point["NodesReady"] == 1, "{point}");
    page.open(&format!("{}/ui/trends", agent.address()))?;
    page.shows("The last hour")?;
    page.choose("Over", "86400")?;
    page.shows("The last day")?;
    page.shows("As Prometheus has collected it.")?;
    page.shows("used: 321 MHz")?;
    // A link shows the same.
    page.until("the range in the address", "location.search === '?range=86400'")?;
    page.open(&format!("{}/ui/trends?range=604800", agent.address()))?;
    page.shows("The last week")?;
    // It is away: the page says so, and what helps.
    drop(prometheus);
    page.expect("/v1/metrics/history");
    page.open(&format!("{}/ui/trends?range=86400", agent.address()))?;
    page.shows("could not ask Prometheus at http://127.0.0.1")?;
    page.choose("Over", "3600")?;
    page.shows("As the server that leads has seen it")?;
    end(&agent, "charted")
}
