//! Stories of volumes.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{
    super::cluster::Agent,
    kit::{end, running, sleeps, started},
    page::Page,
};

/// Makes a dynamic host volume; its id.
pub(super) fn make_volume(agent: &Agent, name: &str) -> Result<String> {
    let modes = json!([{"AccessMode": "single-node-multi-writer", "AttachmentMode": "file-system"}]);
    let volume = json!({"Name": name, "Type": "host", "PluginID": "mkdir", "RequestedCapabilities": modes,
        "Parameters": {"mode": "0777"}});
    let made = agent.put("/v1/volume/host/create", &json!({"Volume": volume}))?;
    made["Volume"]["ID"].as_str().map(str::to_owned).with_context(|| format!("no id in {made}"))
}

pub(super) fn volumes(page: &mut Page) -> Result<()> {
    let agent = started("web-volumes")?;
    page.open(&format!("{}/ui/storage", agent.address()))?;
    page.shows("There is no dynamic host volume.")?;
    let id = make_volume(&agent, "scratch")?;
    // Nothing is loaded again.
    page.shows(&id[..8])?;
    page.fill("Filter", "nothing of that name")?;
    page.shows("No volume matches the filter.")?;
    page.fill("Filter", "SCRATCH")?;
    page.click("scratch")?;
    page.shows("single-node-multi-writer as file-system")?;
    page.shows("There is no allocation.")?;
    let mounted = json!({"Volumes": {"v": {"Name": "v", "Type": "host", "Source": "scratch"}}});
    agent.submit(&sleeps("user").group(mounted).body())?;
    let alloc = running(&agent, "user")?;
    page.open(&format!("{}/ui/storage/volumes/dynamic/{id}@default", agent.address()))?;
    page.shows(&alloc[..8])?;
    page.click("Delete")?;
    // The server says why not.
    page.expect("/v1/volume/host/");
    page.shows("Delete scratch and the data in it?")?;
    page.click("Delete")?;
    page.shows("in use by allocations")?;
    end(&agent, "user")?;
    page.open(&format!("{}/ui/storage/volumes/dynamic/{id}@default", agent.address()))?;
    page.click("Delete")?;
    page.shows("Delete scratch and the data in it?")?;
    page.click("Delete")?;
    page.shows("There is no dynamic host volume.")
}
