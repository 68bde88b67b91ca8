//! What people look at within a task: its files, and a terminal in it.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    super::job::Job,
    kit::{end, running, sleeps, started},
    page::Page,
};
use crate::local::{self, BOUND, until};

pub(super) fn files(page: &mut Page) -> Result<()> {
    let agent = started("web-files")?;
    let evil = "<script>window.hacked=1</script><svg onload=window.hacked=1>";
    let script = format!(
        "cd $NOMAD_TASK_DIR; mkdir 'a b'; echo '{evil}' > 'a b/page.html'; \
         head -c 70000 /dev/zero | tr '\\0' x > long; echo end >> long; \
         printf 'a\\0b' > binary; : > empty; exec sleep 71021"
    );
    agent.submit(&Job::script("keeps", "service", "raw_exec", &script).undeployed().body())?;
    let alloc = running(&agent, "keeps")?;
    let made = agent.dir().join("data/alloc").join(&alloc).join("t/local/empty");
    until("its files", BOUND, || Ok(made.exists().then_some(())))?;
    page.open(&format!("{}/ui/allocations/{alloc}", agent.address()))?;
    page.click("Files")?;
    for part in ["t/", "local/", "a b/", "page.html"] {
        page.click(part)?;
    }
    page.shows(evil)?;
    ensure!(page.eval("window.hacked === undefined && !document.querySelector('main script')")? == true, "it has run");
    // The bytes themselves are no page of this origin, either.
    let raw = format!("/v1/client/fs/cat/{alloc}?path=t%2Flocal%2Fa%20b%2Fpage.html");
    let headers = page.eval(&format!(
        "fetch('{raw}').then((r) => ['content-security-policy', 'x-content-type-options'].map((h) => r.headers.get(h)))"
    ))?;
    ensure!(headers == json!(["default-src 'none'; sandbox", "nosniff"]), "{headers}");
    // Nomad's addresses, with a task and without.
    // As a stock agent, ours answers that with 500.
    page.expect("nothing");
    for (link, shows) in [
        (format!("/ui/allocations/{alloc}/fs/t/local/long"), "The last 64.0 KiB of it"),
        (format!("/ui/allocations/{alloc}/fs/t/local/binary"), "It is no text."),
        (format!("/ui/allocations/{alloc}/fs/t/local/empty"), "The file is empty."),
        (format!("/ui/allocations/{alloc}/fs/nothing"), "No such file"),
    ] {
        page.open(&format!("{}{link}", agent.address()))?;
        page.shows(shows).with_context(|| link.clone())?;
    }
    page.open(&format!("{}/ui/allocations/{alloc}/fs/t/local/long", agent.address()))?;
    page.shows("xend")?;
    end(&agent, "keeps")
}

pub(super) fn terminal(page: &mut Page) -> Result<()> {
    let agent = started("web-terminal")?;
    let greets = json!({"Actions": [{"Name": "greet", "Command": "/bin/echo", "Args": ["hello from an action"]}]});
    agent.submit(&sleeps("shell").task(greets).body())?;
    let alloc = running(&agent, "shell")?;
    page.open(&format!("{}/ui/allocations/{alloc}", agent.address()))?;
    page.click("Exec in t")?;
    page.click("Run")?;
    page.shows("Connected.")?;
    page.until("a prompt", "/[#$]/.test(document.querySelector('.xterm-rows')?.textContent)")?;
    let says = |what: &str| {
        format!("[...document.querySelectorAll('.xterm-rows > div')].some((l) => l.textContent.trim() === '{what}')")
    };
    page.types("echo $((6*7)); stty size")?;
    page.key("Enter")?;
    page.until("what the command says", &says("42"))?;
    // The terminal has the size of the page, and follows it.
    let columns = "document.querySelector('.xterm-rows').textContent.match(/\\d+ (\\d+)/)?.[1]";
    page.until("its size", &format!("{columns} > 80"))?;
    page.size(700, 900)?;
    page.types("clear; stty size")?;
    page.key("Enter")?;
    page.until("its new size", &format!("{columns} < 100"))?;
    // Ctrl+C ends what runs, not the session.
    page.types("sleep 71022")?;
    page.key("Enter")?;
    until("a command that runs", BOUND, || Ok((!local::processes_like("sleep 71022").is_empty()).then_some(())))?;
    page.key_with("c", 2)?;
    until("its end", BOUND, || Ok(local::processes_like("sleep 71022").is_empty().then_some(())))?;
    // A program may not name the window.
    page.types("printf '\\033]0;owned\\007'; exit 7")?;
    page.key("Enter")?;
    page.shows("The command ended with exit code 7.")?;
    ensure!(page.eval("document.title.includes('owned')")? == false, "a program has named the window");
    page.size(1280, 900)?;
    // What is wrong is said, and can be tried again.
    page.fill("Command", "/no/such/program")?;
    page.click("Run again")?;
    page.shows("/no/such/program")?;
    page.hides("The command ended with exit code 7.")?;
    page.fill("Command", "/bin/echo again")?;
    page.click("Run again")?;
    page.shows("The command ended with exit code 0.")?;
    page.until("its output", &says("again"))?;
    page.choose("Action", "greet")?;
    page.click("Run again")?;
    page.until("what the action says", &says("hello from an action"))?;
    // All that a job names has a page, with what each run said.
    page.open(&format!("{}/ui/jobs/shell@default/actions", agent.address()))?;
    page.shows("/bin/echo hello from an action")?;
    page.click("Run on one")?;
    page.shows("Run greet in shell.g[0]?")?;
    page.click("Run on one")?;
    page.shows("The command ended with exit code 0.")?;
    page.until("what it said", "document.querySelector('pre.log').textContent.trim() === 'hello from an action'")?;
    end(&agent, "shell")
}

/// A service with a check that fails: nobody listens at its port.
pub(super) fn checks(page: &mut Page) -> Result<()> {
    let agent = started("web-checks")?;
    let check = json!({"Name": "answers", "Type": "tcp", "Interval": 1_000_000_000, "Timeout": 1_000_000_000});
    let service = json!({"Name": "mute", "Provider": "nomad", "PortLabel": "p", "Checks": [check]});
    let group = json!({"Networks": [{"Mode": "host", "DynamicPorts": [{"Label": "p"}]}], "Services": [service]});
    agent.submit(&sleeps("mute").group(group).body())?;
    let alloc = running(&agent, "mute")?;
    page.open(&format!("{}/ui/allocations/{alloc}", agent.address()))?;
    let row = "[...document.querySelectorAll('tbody tr')].find((row) => row.innerText.startsWith('answers'))";
    page.until(
        "what the check says",
        &format!("{row}?.innerText.includes('failed') && {row}.innerText.includes('refused')"),
    )?;
    end(&agent, "mute")
}
