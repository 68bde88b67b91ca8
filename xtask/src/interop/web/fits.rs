//! Every page at every width and in both themes, with the longest names, and as axe-core judges it.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    super::cluster::Agent,
    axe,
    kit::{running, sleeps, started},
    page::Page,
    storage,
};
use crate::local::{BOUND, until};

/// The name of what is shown.
fn long() -> String {
    "a-service-whose-name-somebody-has-put-together-from-everything-that-it-does-and-where-".repeat(2)
}

pub(super) fn of_jobs(page: &mut Page) -> Result<()> {
    let (agent, long) = (started("web-fits")?, long());
    agent.submit(&sleeps(&long).body())?;
    let alloc = running(&agent, &long)?;
    let eval =
        agent.list(&format!("/v1/job/{long}/evaluations"))?[0]["ID"].as_str().context("an evaluation")?.to_owned();
    let job = format!("/ui/jobs/{long}@default");
    let tabs =
        ["allocations", "versions", "evaluations", "services", "clients", "variables", "actions", "definition", "g"];
    let mut links = vec!["/ui/jobs".to_owned(), job.clone()];
    links.extend(tabs.map(|tab| format!("{job}/{tab}")));
    links.extend([
        format!("/ui/evaluations?currentEval={eval}"),
        format!("/ui/allocations/{alloc}"),
        format!("/ui/allocations/{alloc}/fs/t"),
        format!("/ui/exec/{long}"),
        format!("/ui/jobs/run?job={long}"),
    ]);
    fit(page, &agent, &links, &long)?;
    agent.delete(&format!("/v1/job/{long}"))?;
    until("the end of its task", BOUND, || Ok(agent.alloc(&long, "running")?.is_none().then_some(())))
}

pub(super) fn others(page: &mut Page) -> Result<()> {
    let (agent, long) = (started("web-fits-others")?, long());
    let node = agent.list("/v1/nodes")?[0]["ID"].as_str().context("a node")?.to_owned();
    agent.put(&format!("/v1/var/{}", &long[..120]), &json!({"Path": &long[..120], "Items": {"k": "v"}}))?;
    let volume = storage::make_volume(&agent, &long[..100])?;
    let mut links: Vec<String> = [
        "clients",
        "servers",
        "topology",
        "services",
        "variables",
        "administration/policies/new",
        "administration/tokens/new",
        "administration/namespaces/new",
        "administration/namespaces",
        "trends",
        "storage",
        "remote",
        "evaluations",
        "settings/user-settings",
        "settings/tokens",
    ]
    .map(|link| format!("/ui/{link}"))
    .into();
    links.extend([
        format!("/ui/clients/{node}"),
        format!("/ui/clients/{node}/monitor"),
        format!("/ui/storage/volumes/dynamic/{volume}@default"),
    ]);
    fit(page, &agent, &links, &long)
}

fn fit(page: &mut Page, agent: &Agent, links: &[String], long: &str) -> Result<()> {
    let checker = axe::source()?;
    let mut wrong = Vec::new();
    for link in links {
        page.open(&format!("{}{link}", agent.address()))?;
        page.hides("Loading…")?;
        for (width, theme) in [(1280, "light"), (320, "light"), (360, "light"), (360, "dark"), (1280, "dark")] {
            page.size(width, 800)?;
            page.eval(&format!("document.documentElement.dataset.theme = '{theme}'"))?;
            // The browser asks for less motion.
            ensure!(page.eval("document.getAnimations().length")? == 0, "{link}: something moves");
            let over = page.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth")?;
            ensure!(over.as_i64() <= Some(0), "{link} at {width} px: {over} px stick out");
            if [(1280, "light"), (360, "dark")].contains(&(width, theme)) {
                let told = axe::check(page, &checker, &format!("{link} at {width} px, {theme}"));
                wrong.extend(told.err().map(|error| format!("{error:#}")));
            }
            page.keep(&format!("{}-{width}-{theme}", link.replace(['/', '@', '?'], "-").replace(long, "long")))?;
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    page.size(1280, 900)
}
