//! Versions of a job: the way back, their names, and what differs between any two.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{
    super::{cluster::Agent, job::Job},
    kit::{end, sleeps, started},
    page::Page,
};
use crate::local::{BOUND, until};

/// A job whose versions differ by this.
fn kept(n: &str) -> Job {
    sleeps("kept").task(json!({"Env": {"N": n}}))
}

fn until_version(agent: &Agent, version: u64) -> Result<()> {
    let is = || Ok((agent.get("/v1/job/kept")?["Version"] == version).then_some(()));
    until(&format!("version {version}"), BOUND, is)
}

pub(super) fn reverted(page: &mut Page) -> Result<()> {
    let agent = started("web-reverted")?;
    agent.submit(&kept("first").body())?;
    agent.submit(&kept("second").body())?;
    page.open(&format!("{}/ui/jobs/kept@default/versions", agent.address()))?;
    page.shows("first → second")?;
    page.click("Revert")?;
    page.shows("Register version 0 of kept again?")?;
    page.click("Revert")?;
    until_version(&agent, 2)?;
    let now = agent.get("/v1/job/kept")?;
    ensure!(now["TaskGroups"][0]["Tasks"][0]["Env"]["N"] == "first", "{now}");
    page.until("three versions", "document.querySelectorAll('tbody tr').length === 3")?;
    end(&agent, "kept")
}

pub(super) fn named(page: &mut Page) -> Result<()> {
    let agent = started("web-versions")?;
    let rows = |n: usize| format!("document.querySelectorAll('tbody tr').length === {n}");
    for n in ["first", "second", "third"] {
        agent.submit(&kept(n).body())?;
    }
    page.open(&format!("{}/ui/jobs/kept@default/versions", agent.address()))?;
    page.until("three versions", &rows(3))?;
    page.click("Tag")?;
    page.shows("A tag names version 2, and keeps it.")?;
    page.fill("Name of the tag", "golden")?;
    page.fill("Description of the tag", "before the move")?;
    page.click("Set tag")?;
    page.shows("before the move")?;
    let tag = &agent.get("/v1/job/kept/versions")?["Versions"][0]["VersionTag"];
    ensure!(tag["Name"] == "golden" && tag["Description"] == "before the move", "{tag}");
    // Any two are compared, and a link shows the same.
    page.choose("Changes since", "0")?;
    page.shows("first → third")?;
    page.until("the version in the address", "location.search === '?since=0'")?;
    page.choose("Changes since", "")?;
    page.shows("second → third")?;
    page.click("Remove tag")?;
    page.shows("Take the tag golden from version 2?")?;
    page.click("Remove tag")?;
    page.hides("before the move")?;
    // Stops and starts are no changes that anybody looks for.
    end(&agent, "kept")?;
    agent.submit(&kept("third").body())?;
    until_version(&agent, 4)?;
    page.shows("Also 1 that only stopped or started it")?;
    page.until("the versions that changed something", &rows(4))?;
    page.eval("document.querySelector('main input[type=checkbox]').click()")?;
    page.until("all versions", &rows(5))?;
    end(&agent, "kept")
}
