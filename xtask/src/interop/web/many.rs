//! Ten thousand of everything: what a page costs, in time and in memory.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    super::{
        cluster::{Agent, Role},
        fleet::Nodes,
        job::Job,
    },
    kit::sleeps,
    page::Page,
};
use crate::local::{BOUND, target_dir, until};

const MANY: usize = 10_000;
/// The rows of a first screen are there.
const ROWS: &str = "document.querySelectorAll('tbody tr').length >= 100";
const WRITERS: usize = 8;
/// What a page may hold of it.
const ELEMENTS: u64 = 1_500;
const MEMORY_BYTES: u64 = 120 << 20;
/// How long jobs come at the rate of [`EACH`] a second and writer.
const SOAK: Duration = Duration::from_secs(20);
const EACH: u32 = 13;
/// Nodes that bear the allocations.
const NODES: usize = 60;
/// Allocations of the one that has many.
const DENSE: usize = 700;

/// A template: it asks for no room, and waits for nothing.
fn template(id: &str) -> Value {
    let mut job = sleeps(id).body();
    job["Job"]["Type"] = "batch".into();
    job["Job"]["ParameterizedJob"] = json!({});
    job["Job"]["TaskGroups"][0]["Update"] = Value::Null;
    job
}

/// Lets several write at once.
fn written(write: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn({
                    let write = &write;
                    move || write(writer)
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|_| bail!("a writer died")))
    })
}

/// From the key to the painted rows, in milliseconds. Measured in the page: from outside it would be the time of asking
/// as well.
fn filtered(page: &mut Page, text: &str) -> Result<f64> {
    let took = page.eval(&format!(
        "(async () => {{ const field = document.querySelector('input[type=search]'), begun = performance.now(); \
         field.value = '{text}'; field.dispatchEvent(new Event('input', {{ bubbles: true }})); \
         while (document.querySelectorAll('tbody tr').length !== 1) await new Promise(requestAnimationFrame); \
         await new Promise(requestAnimationFrame); return performance.now() - begun; }})()"
    ))?;
    Ok(took.as_f64().unwrap_or(f64::NAN))
}

/// From the click on a link of the page to the painted rows of another one, in milliseconds.
fn clicked(page: &mut Page, link: &str) -> Result<f64> {
    let took = page.eval(&format!(
        "(async () => {{ const link = [...document.querySelectorAll('nav a')].find((a) => a.textContent === '{link}'); \
         const begun = performance.now(); link.click(); \
         while (!({ROWS})) await new Promise(requestAnimationFrame); \
         await new Promise(requestAnimationFrame); return performance.now() - begun; }})()"
    ))?;
    Ok(took.as_f64().unwrap_or(f64::NAN))
}

/// Goes on through the rows. The longest time that the page was busy with one thing, in milliseconds: meanwhile it does
/// not answer to anybody; 0 where the browser calls none long, which begins at 50 ms.
fn paged(page: &mut Page) -> Result<f64> {
    let longest = page.eval(
        "(async () => { let longest = 0; \
         const seen = new PerformanceObserver((list) => list.getEntries().forEach((task) => { \
         longest = Math.max(longest, task.duration); })); seen.observe({ type: 'longtask' }); \
         const more = (title) => [...document.querySelectorAll('button')].find((b) => b.textContent === title); \
         for (const title of ['More', 'More', 'More', 'Back', 'Back']) { more(title).click(); \
         window.scrollBy(0, 4000); await new Promise((done) => setTimeout(done, 200)); } \
         seen.disconnect(); return longest; })()",
    )?;
    Ok(longest.as_f64().unwrap_or(f64::NAN))
}

fn few_elements(page: &mut Page) -> Result<()> {
    let elements = page.eval("document.querySelectorAll('*').length")?;
    ensure!(elements.as_u64() < Some(ELEMENTS), "{elements} elements for a screen of rows");
    Ok(())
}

/// Says what the page holds, and fails when that is too much.
fn memory(page: &mut Page, when: &str) -> Result<()> {
    let bytes = page.memory()?;
    eprintln!("    memory of the page {when}: {} MiB", bytes >> 20);
    ensure!(bytes <= MEMORY_BYTES, "the page holds {bytes} bytes {when}");
    Ok(())
}

pub(super) fn jobs(page: &mut Page) -> Result<()> {
    let agent = Agent::start_as("web-many", Role::Server, &[], "")?;
    until("the server", BOUND, || Ok(agent.get("/v1/status/leader").ok()))?;
    written(|writer| (0..MANY / WRITERS).try_for_each(|n| agent.submit(&template(&format!("job-{writer}-{n:04}")))))?;
    let first = page.open_until(&format!("{}/ui/jobs", agent.address()), ROWS)?;
    few_elements(page)?;
    page.until("the whole list", &format!("document.body.innerText.includes('of {MANY}')"))?;
    page.open(&format!("{}/ui/servers", agent.address()))?;
    page.shows("leads")?;
    let click = clicked(page, "Jobs")?;
    page.until("the whole list", &format!("document.body.innerText.includes('of {MANY}')"))?;
    let key = filtered(page, "job-7-1249")?;
    let requests = page.eval("performance.getEntriesByType('resource').length + 1")?;
    page.open(&format!("{}/ui/jobs", agent.address()))?;
    page.until("the whole list", &format!("document.body.innerText.includes('of {MANY}')"))?;
    let busy = paged(page)?;
    eprintln!(
        "    {MANY} jobs: first rows {click:.0} ms after a click, {first:.0} ms after nothing, filtered after \
            {key:.0} ms, {requests} requests; rows keep the page busy for {busy:.0} ms at most"
    );
    memory(page, "with them")?;
    // Others come, up to a hundred each second, and the page is kept fresh.
    page.eval("performance.clearResourceTimings()")?;
    let (begun, came) = (Instant::now(), AtomicU64::new(0));
    written(|writer| {
        let mut n = 0;
        // The last of the names that are looked for comes on a slow machine, too.
        while begun.elapsed() < SOAK || n < 100 {
            agent.submit(&template(&format!("soak-{writer}-{:04}", n % 100)))?;
            n += 1;
            came.fetch_add(1, Ordering::Relaxed);
            thread::sleep((begun + Duration::from_secs(1) * n / EACH).saturating_duration_since(Instant::now()));
        }
        Ok(())
    })?;
    let asked = page.eval("performance.getEntriesByType('resource').length")?.as_u64().unwrap_or(u64::MAX);
    ensure!(asked <= begun.elapsed().as_secs() + 1, "{asked} requests in {:.0?}", begun.elapsed());
    page.fill("Filter", "soak-7-0099")?;
    page.until("the last that came", "document.querySelectorAll('tbody tr').length === 1")?;
    let (came, seconds) = (came.into_inner(), begun.elapsed().as_secs());
    memory(page, &format!("after {came} jobs came in {seconds} s"))
}

pub(super) fn allocs(page: &mut Page) -> Result<()> {
    let server = Agent::start_as("web-allocs", Role::Server, &[], "limits {\n  rpc_max_conns_per_client = 0\n}\n")?;
    until("the server", BOUND, || Ok(server.get("/v1/status/leader").ok()))?;
    let mut nodes = Nodes::start(&target_dir().join("debug/fleet"), &server, NODES)?;
    nodes.until_all_are_welcome(BOUND)?;
    let job = Job::command("big", "service", "raw_exec", "/bin/sleep", &["71030"]).count(MANY).undeployed();
    server.submit(&job.task(json!({"Resources": {"CPU": 1, "MemoryMB": 10}})).body())?;
    until("all of them running", BOUND * 6, || {
        thread::sleep(Duration::from_millis(200));
        Ok((nodes.stats()?.stored >= MANY as u64).then_some(()))
    })?;
    let begun = Instant::now();
    let first = page.open_until(&format!("{}/ui/jobs/big@default/allocations", server.address()), ROWS)?;
    page.until("the whole list", &format!("document.body.innerText.includes('of {MANY}')"))?;
    let all = begun.elapsed();
    few_elements(page)?;
    let key = filtered(page, "big.g[4711]")?;
    page.open(&format!("{}/ui/jobs/big@default/services", server.address()))?;
    page.shows("The job has no service.")?;
    let click = clicked(page, "Allocations")?;
    eprintln!(
        "    {MANY} allocations: first rows {click:.0} ms after a click, {first:.0} ms after nothing, all after \
            {all:.2?}, filtered after {key:.0} ms"
    );
    memory(page, "with them")?;
    let node = server.list("/v1/nodes")?[0]["ID"].as_str().context("a node")?.to_owned();
    let only = json!([{"LTarget": "${node.unique.id}", "RTarget": node, "Operand": "="}]);
    let job = Job::command("dense", "service", "raw_exec", "/bin/sleep", &["71034"]).count(DENSE).undeployed();
    let job = job.group(json!({"Constraints": only})).task(json!({"Resources": {"CPU": 1, "MemoryMB": 10}}));
    server.submit(&job.body())?;
    until("those of one node", BOUND * 3, || {
        let jobs = server.list("/v1/jobs?prefix=dense")?;
        Ok((jobs[0]["JobSummary"]["Summary"]["g"]["Running"] == DENSE).then_some(()))
    })?;
    let shown = page.open_until(&format!("{}/ui/clients/{node}", server.address()), ROWS)?;
    few_elements(page)?;
    eprintln!("    a node with more than {DENSE} allocations is shown after {shown:.0} ms");
    page.open(&format!("{}/ui/topology?q=big", server.address()))?;
    page.until("its room", "document.querySelector('a.marked')?.textContent === 'big'")?;
    let named = "[...document.querySelectorAll('tbody td.name')].filter((e) => e.textContent.trim()).length";
    page.until("the names of all nodes", &format!("{named} === {NODES}"))?;
    few_elements(page)
}
