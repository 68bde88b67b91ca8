//! What is done to many allocations at once.

use anyhow::{Result, ensure};

use super::{
    kit::{sleeps, started},
    page::Page,
};
use crate::local::{BOUND, until};

const MANY: usize = 11;

pub(super) fn bulk(page: &mut Page) -> Result<()> {
    let agent = started("web-bulk")?;
    agent.submit(&sleeps("many").count(MANY).body())?;
    let running = || -> Result<Vec<(String, String)>> {
        let all = agent.list("/v1/job/many/allocations")?.into_iter().filter(|a| a["ClientStatus"] == "running");
        let text = |a: &serde_json::Value, of: &str| a[of].as_str().unwrap_or_default().to_owned();
        Ok(all.map(|a| (text(&a, "ID"), text(&a, "Name"))).collect())
    };
    let first = until("all of them", BOUND, || Ok(Some(running()?).filter(|all| all.len() == MANY)))?;
    page.open(&format!("{}/ui/jobs/many@default/allocations", agent.address()))?;
    page.until("a cell for each", &format!("document.querySelectorAll('.squares a.good').length === {MANY}"))?;
    page.fill("Filter", "many.g[3]")?;
    page.click("Restart 1")?;
    page.shows("Restart the tasks of the one that runs and matches the filter, in place?")?;
    page.click("Restart 1")?;
    let restarts = |id: &str| -> Result<u64> {
        Ok(agent.get(&format!("/v1/allocation/{id}"))?["TaskStates"]["t"]["Restarts"].as_u64().unwrap_or(0))
    };
    let third = first.iter().find(|(_, name)| name == "many.g[3]").map(|(id, _)| id.clone()).unwrap_or_default();
    until("its restart", BOUND, || Ok((restarts(&third)? == 1).then_some(())))?;
    for (id, name) in first.iter().filter(|(id, _)| *id != third) {
        ensure!(restarts(id)? == 0, "{name} does not match the filter");
    }
    // More than ten at once: somebody types how many.
    page.open(&format!("{}/ui/jobs/many@default/allocations", agent.address()))?;
    page.click("Stop 11")?;
    page.shows("Stop the 11 that run? Each is placed again, perhaps elsewhere.")?;
    let barred = "document.querySelector('dialog button.danger').disabled";
    ensure!(page.eval(barred)? == true, "nothing has been typed");
    page.fill("What to type", "10")?;
    ensure!(page.eval(barred)? == true, "something else has been typed");
    page.fill("What to type", "11")?;
    page.click("Stop 11")?;
    until("others in their places", BOUND, || {
        let now = running()?;
        Ok((now.len() == MANY && now.iter().all(|(id, _)| first.iter().all(|(old, _)| old != id))).then_some(()))
    })?;
    page.open(&format!("{}/ui/jobs/many@default", agent.address()))?;
    page.shows("All is well: 11 allocations run.")?;
    page.click("Stop")?;
    page.shows("Its 11 running allocations end.")?;
    page.fill("What to type", "many")?;
    page.click("Stop")?;
    page.shows("It is stopped.")?;
    until("the end of its tasks", BOUND, || Ok(running()?.is_empty().then_some(())))
}
