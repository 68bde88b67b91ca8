//! An agent that does not answer: what a page shows meanwhile.

use anyhow::Result;
use rustix::process::Signal;

use super::{
    kit::{end, running, sleeps, started},
    page::Page,
};
use crate::local::signal;

pub(super) fn away(page: &mut Page) -> Result<()> {
    let mut agent = started("web-away")?;
    agent.submit(&sleeps("stays").body())?;
    running(&agent, "stays")?;
    page.open(&format!("{}/ui/jobs", agent.address()))?;
    page.shows("running")?;
    agent.crash()?;
    page.shows("the agent does not answer")?;
    // What was known is shown on.
    page.shows("stays")?;
    agent.restart()?;
    page.hides("the agent does not answer")?;
    agent.submit(&sleeps("new").count(0).body())?;
    page.shows("new")?;
    end(&agent, "stays")
}

/// It is stopped, not dead: connections stay open, and nothing comes.
pub(super) fn silent(page: &mut Page) -> Result<()> {
    let agent = started("web-silent")?;
    agent.submit(&sleeps("stays").count(0).body())?;
    page.open(&format!("{}/ui/jobs", agent.address()))?;
    page.shows("stays")?;
    signal(agent.pid(), Signal::STOP)?;
    // Twice: a stream that lives may say nothing for thirty seconds, as long as a page is waited for.
    let stale = |page: &mut Page| page.shows("stale for").or_else(|_| page.shows("stale for"));
    let said = stale(page).and_then(|()| page.shows("stays")).and_then(|()| leaves(page));
    signal(agent.pid(), Signal::CONT)?;
    said?;
    page.click("Jobs")?;
    page.hides("stale for")?;
    agent.submit(&sleeps("new").count(0).body())?;
    page.shows("new")
}

/// Whoever leaves a page takes its requests along, answered or not: none stands in the way of the next page.
fn leaves(page: &mut Page) -> Result<()> {
    page.eval(
        "window.open_requests = 0; const ask = window.fetch; window.fetch = (...of) => { window.open_requests += 1; \
         return ask(...of).finally(() => { window.open_requests -= 1; }); }; true",
    )?;
    for at in ["Clients", "Servers", "Topology", "Services", "Storage", "Variables", "Evaluations", "Remote"] {
        page.click(at)?;
        page.until(at, "document.querySelectorAll('nav a[aria-current]').length === 1 && window.open_requests > 0")?;
    }
    // Those of the page that is shown, and the stream.
    page.until("no more than its own requests", "window.open_requests <= 3")
}
