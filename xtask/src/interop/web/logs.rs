//! The output of tasks: followed, searched, large, and over a hand-over.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    super::job::Job,
    kit::{end, in_runtime, running, started, two_managers},
    page::Page,
};
use crate::local::{self, BOUND, until};

/// What a page may hold of a log that is larger than that.
const MEMORY_BYTES: u64 = 120 << 20;

pub(super) fn followed(page: &mut Page) -> Result<()> {
    let agent = started("web-logs")?;
    let script = "n=0; while [ $n -lt 2000 ]; do n=$((n+1)); echo line $n; done; echo whisper >&2; \
        while [ ! -e $NOMAD_TASK_DIR/go ]; do sleep 0.05; done; echo last of all; exec sleep 71017";
    agent.submit(&Job::script("talks", "service", "raw_exec", script).undeployed().body())?;
    let alloc = running(&agent, "talks")?;
    page.open(&format!("{}/ui/allocations/{alloc}/t/logs", agent.address()))?;
    page.shows("line 2000")?;
    let lines = "document.querySelector('pre.log').textContent.trim().split('\\n')";
    // Each line once, and in its order.
    let all = page.eval(&format!("{lines}.every((l, i) => l === `line ${{i + 1}}`) && {lines}.length"))?;
    ensure!(all == 2000, "lines are lost or doubled: {all}");
    // All of it is saved, also what the page does not show.
    page.eval(
        "window.saved = 0; URL.createObjectURL = (blob) => { window.saved = blob.size; return '#saved'; }; true",
    )?;
    page.click("Download stdout")?;
    page.until("the whole log", "window.saved > 18000")?;
    page.fill("Filter", "line 1999")?;
    page.until("one line", &format!("{lines}.length === 1"))?;
    page.eval("document.querySelector('input[type=search]').select()")?;
    page.fill("Filter", "last of")?;
    page.shows("No output.")?;
    std::fs::write(agent.dir().join("data/alloc").join(&alloc).join("t/local/go"), "")?;
    page.shows("last of all")?;
    page.choose("Output", "stderr")?;
    page.fill("Filter", "whisper")?;
    page.shows("whisper")?;
    page.choose("Output", "both")?;
    page.eval("document.querySelector('input[type=search]').select()")?;
    page.fill("Filter", "/^(LAST|WHISPER)/i")?;
    page.until("lines of both outputs", &format!("{lines}.length === 2"))?;
    page.fill("Filter", "/(/")?;
    page.shows("The expression cannot be read")?;
    end(&agent, "talks")
}

/// A hundred megabytes are there when the page is opened, and twenty more pass through it while they are written.
pub(super) fn large(page: &mut Page) -> Result<()> {
    let agent = started("web-large-log")?;
    let script = "line='\\033[31mred\\033[0m of a hundred megabytes, \\033[1mbold\\033[0m, \\033]0;owned\\007plain'; \
        cd $NOMAD_TASK_DIR; yes \"$(printf \"$line\")\" | head -c 100000000; echo; echo half way; : > ready; \
        while [ ! -e go ]; do sleep 0.05; done; \
        yes \"$(printf \"$line\")\" | head -c 20000000; echo; echo the last line; exec sleep 71031";
    let job = Job::script("large", "service", "raw_exec", script).undeployed();
    agent.submit(&job.task(json!({"LogConfig": {"MaxFiles": 5, "MaxFileSizeMB": 40}})).body())?;
    let alloc = running(&agent, "large")?;
    let local = agent.dir().join("data/alloc").join(&alloc).join("t/local");
    until("a hundred megabytes", BOUND, || Ok(local.join("ready").exists().then_some(())))?;
    // Whoever comes sees the end at once, and more when it is asked for.
    let opened = page.open_until(
        &format!("{}/ui/allocations/{alloc}/t/logs", agent.address()),
        "document.querySelector('pre.log')?.textContent.includes('half way')",
    )?;
    page.shows("of earlier output not shown")?;
    let shown = "document.querySelector('pre.log').textContent.length";
    ensure!(page.eval(shown)?.as_u64() < Some(60_000), "more than the end");
    page.click("Show more of it")?;
    page.until("more of it", &format!("{shown} > 200000"))?;
    page.until("its colours", "document.querySelectorAll('pre.log .ansi-red').length > 100")?;
    page.fill("Filter", "/^HALF/i")?;
    page.until("the one line", "document.querySelector('pre.log').textContent.trim() === 'half way'")?;
    page.eval("document.querySelector('input[type=search]').select()")?;
    page.key("Backspace")?;
    page.until("all again", &format!("{shown} > 200000"))?;
    let begun = std::time::Instant::now();
    fs::write(local.join("go"), "")?;
    // To read all that is shown each time would keep the page from it.
    page.until("the last line", "document.querySelector('pre.log').lastChild?.textContent?.includes('the last line')")?;
    let followed = begun.elapsed();
    ensure!(page.eval(&format!("{shown} < 500000"))? == true, "all of it is there");
    let owned = "document.querySelector('pre.log').textContent.includes('owned')";
    ensure!(page.eval(owned)? == false, "an escape is shown");
    let bytes = page.memory()?;
    ensure!(bytes <= MEMORY_BYTES, "the page holds {bytes} bytes after a large log");
    eprintln!("    the end of 100 MB after {opened:.0} ms; 20 MB more in {followed:.1?}, {} MiB held", bytes >> 20);
    end(&agent, "large")
}

pub(super) fn over(page: &mut Page) -> Result<()> {
    in_runtime("log-over", |dir| handed_over(page, dir))
}

fn handed_over(page: &mut Page, dir: &Path) -> Result<()> {
    let (server, mut nodes) = two_managers(["web-log-a", "web-log-b"], dir)?;
    let script = "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.02; done; : 71032";
    server.submit(&Job::script("tells", "service", "remote_exec", script).undeployed().body())?;
    let alloc = running(&server, "tells")?;
    page.open(&format!("{}/ui/allocations/{alloc}/t/logs", server.address()))?;
    let lines = "document.querySelector('pre.log').textContent.trim().split('\\n')";
    let seen = |n: usize| format!("{lines}.length > {n}");
    page.until("the first lines", &seen(50))?;
    let record = server.records()?.into_iter().next().context("a record")?;
    let manager = record["ManagerName"].as_str().context("a manager")?.to_owned();
    let which = usize::from(manager != "web-log-a");
    // Whoever asks for a node that is not there is told so with 500, as by a stock agent.
    page.expect("/v1/client/");
    nodes[which].crash()?;
    let next = nodes[1 - which].name().to_owned();
    page.shows(&format!("The task is managed by {next} now."))?;
    let before = page.eval(&format!("{lines}.length"))?.as_u64().context("a number")?;
    page.until("lines that came since", &seen(usize::try_from(before)? + 100))?;
    // Its first manager comes back as nobody: nothing comes twice.
    nodes[which].restart()?;
    server.until_healthy(&["remote_exec"], 2)?;
    page.until("lines that came since", &seen(usize::try_from(before)? + 200))?;
    let whole =
        format!("{lines}.every((l, i) => l === `line ${{i + 1}}`) || {lines}.find((l, i) => l !== `line ${{i + 1}}`)");
    let whole = page.eval(&whole)?;
    ensure!(whole == true, "a line is lost or comes twice: {whole}");
    server.delete("/v1/job/tells")?;
    let runs = || local::processes_of(dir).into_iter().any(|(_, line)| line.contains("71032"));
    until("the end of the instance", BOUND, || Ok((!runs()).then_some(())))
}
