//! What people do with the web UI.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use oidc_fake::Provider;
use serde_json::{Value, json};

use super::{
    super::{
        cluster::{self, Agent},
        job::Job,
    },
    Story, away, bulk, demo, drain, fits, history,
    kit::{end, in_runtime, running, sleeps, started, two_managers},
    logs, many, orphans, others,
    page::Page,
    people, storage, tasks, versions,
};
use crate::local::{self, BOUND, until};

/// All of them.
pub(super) const ALL: &[Story] = &[
    ("links of a stock Nomad lead to pages", links),
    ("a job is seen to come, run and end", lives),
    ("why a job is not placed is said, and no longer when it is", unplaced),
    ("a job is planned and run, and nobody's change is overwritten", run),
    ("an older version is registered again", versions::reverted),
    ("versions are named and compared", versions::named),
    ("all that a filter leaves is restarted or stopped", bulk::bulk),
    ("a canary waits for somebody who promotes it", canary),
    ("a job makes others, and how they went is seen", children),
    ("a log is followed and searched", logs::followed),
    ("a log of a hundred megabytes", logs::large),
    ("the log of a remote task goes on over a hand-over", logs::over),
    ("checks of a service are seen", tasks::checks),
    ("files are looked at, whatever is in them", tasks::files),
    ("a terminal in a task", tasks::terminal),
    ("everything is found from one field", found),
    ("where there is room is summed and looked for", topology),
    ("the last hour is shown", trends),
    ("longer times come from Prometheus", history::history),
    ("many tabs share one stream, and hidden ones ask nothing", tabs),
    ("a variable is made, changed and deleted, and nobody's change is lost", variables),
    ("pages of jobs and allocations fit every width and theme, and are for everybody", fits::of_jobs),
    ("all other pages fit every width and theme, and are for everybody", fits::others),
    ("names and output are text, whatever is in them", hostile),
    ("a token is asked for, and the way leads back", login),
    ("an identity provider logs people and programs in", logins),
    ("a policy is written, and a token that has it is made and used", access),
    ("the keyboard alone finds a job, reads its log and stops it", people::keyboard),
    ("settings hold for the browser", people::settings),
    ("a page of somebody else can neither show it nor order anything", others::others),
    ("instances that no record knows are adopted and stopped", orphans::orphans),
    ("an agent that is away is said to be, and comes back", away::away),
    ("an agent that says nothing any more is said to be stale", away::silent),
    ("a volume is found, seen in use, and deleted", storage::volumes),
    ("ten thousand jobs are shown and filtered, while others come", many::jobs),
    ("ten thousand allocations are shown and filtered", many::allocs),
    ("a manager is killed under a remote task, which goes on", killed),
    ("a drain does what its preview says", drain::drain),
    ("the demo is watched while its managers die", demo::demo),
];

fn links(page: &mut Page) -> Result<()> {
    let agent = started("web-links")?;
    agent.submit(&sleeps("web").body())?;
    let alloc = running(&agent, "web")?;
    let node = agent.list("/v1/nodes")?[0]["ID"].as_str().context("a node")?.to_owned();
    let eval = agent.list("/v1/job/web/evaluations")?[0]["ID"].as_str().context("an evaluation")?.to_owned();
    let at = agent.address();
    for (link, shows) in [
        ("/ui/".to_owned(), "Jobs"),
        ("/ui/jobs".to_owned(), "web"),
        ("/ui/jobs/web".to_owned(), "Allocations"),
        ("/ui/jobs/web@default".to_owned(), "Allocations"),
        ("/ui/jobs/web%40default".to_owned(), "Allocations"),
        ("/ui/jobs/web?namespace=default".to_owned(), "Allocations"),
        ("/ui/jobs/web@default/allocations".to_owned(), "running"),
        ("/ui/jobs/web@default/evaluations".to_owned(), "job-register"),
        ("/ui/jobs/web@default/deployments".to_owned(), "no deployment"),
        ("/ui/jobs/web@default/versions".to_owned(), "current"),
        ("/ui/jobs/web@default/definition".to_owned(), "raw_exec"),
        ("/ui/jobs/web@default/variables".to_owned(), "The job may read no variable."),
        ("/ui/jobs/web@default/actions".to_owned(), "The job names no actions."),
        ("/ui/jobs/web@default/clients".to_owned(), "web-links"),
        ("/ui/jobs/web@default/g".to_owned(), "Its count has not been changed by scaling."),
        (format!("/ui/clients/{node}/monitor"), "Log of node"),
        (format!("/ui/evaluations?currentEval={eval}"), "What it has placed or stopped"),
        ("/ui/jobs/run".to_owned(), "Run a job"),
        (format!("/ui/allocations/{alloc}"), "What happened"),
        (format!("/ui/allocations/{alloc}/t/logs"), "Logs"),
        ("/ui/clients".to_owned(), "ready"),
        (format!("/ui/clients/{node}"), "raw_exec"),
        ("/ui/evaluations".to_owned(), "job-register"),
        ("/ui/remote".to_owned(), "Remote tasks"),
        ("/ui/jobs/web@default/services".to_owned(), "The job has no service."),
        ("/ui/servers".to_owned(), "leads"),
        ("/ui/services".to_owned(), "No service is registered."),
        ("/ui/topology".to_owned(), "of "),
        ("/ui/variables".to_owned(), "There is no variable here"),
        ("/ui/variables/new".to_owned(), "New variable"),
        ("/ui/administration/policies".to_owned(), "ACL"),
        ("/ui/administration/tokens".to_owned(), "ACL"),
        ("/ui/administration/namespaces".to_owned(), "default"),
        ("/ui/administration/namespaces/default".to_owned(), "What its jobs may use together"),
        ("/ui/storage/volumes".to_owned(), "There is no dynamic host volume."),
        ("/ui/trends".to_owned(), "Placements"),
        (format!("/ui/allocations/{alloc}/fs"), "alloc/"),
        (format!("/ui/allocations/{alloc}/t/fs/local"), "The directory is empty."),
        ("/ui/exec/web/g/t?namespace=default".to_owned(), "/bin/sh"),
        ("/ui/settings/tokens".to_owned(), "Log in"),
        ("/ui/settings/user-settings".to_owned(), "Time zone"),
    ] {
        page.open(&format!("{at}{link}")).with_context(|| link.clone())?;
        page.shows(shows).with_context(|| link.clone())?;
        page.hides("There is no such page").with_context(|| link.clone())?;
        page.until("the focus on the heading", "document.activeElement?.tagName === 'H1'")?;
    }
    page.open(&format!("{at}/ui/no/such/page"))?;
    page.shows("There is no such page")?;
    end(&agent, "web")
}

fn lives(page: &mut Page) -> Result<()> {
    let agent = started("web-lives")?;
    page.open(&format!("{}/ui/jobs", agent.address()))?;
    page.shows("No job has been registered yet.")?;
    // The first paint, and the largest one: then all is there.
    let painted = page.eval(
        "new Promise((done) => new PerformanceObserver((list) => done([list.getEntries()[0].startTime, \
         list.getEntries().at(-1).startTime])).observe({ type: 'largest-contentful-paint', buffered: true }))",
    )?;
    let bytes = page.eval("performance.getEntriesByType('resource').reduce((sum, r) => sum + r.encodedBodySize, 0)")?;
    eprintln!("    a first visit: {bytes} bytes; the first paint that counts and the last after {painted} ms");
    // It would wait for an hour before it ends.
    let body = sleeps("comes").group(json!({"ShutdownDelay": 3_600_000_000_000_u64})).body();
    agent.submit(&body)?;
    // Nothing is loaded again.
    page.shows("comes")?;
    page.shows("running")?;
    page.click("comes")?;
    page.shows("comes.g[0]")?;
    page.click("Stop without delay")?;
    page.shows("and leave its shutdown_delay out?")?;
    page.click("Stop without delay")?;
    page.shows("The job is stopped.")?;
    page.shows("complete")?;
    page.click("Jobs")?;
    page.shows("stopped")?;
    page.click("comes")?;
    page.click("Start")?;
    page.shows("Start comes again, as version")?;
    page.click("Start")?;
    let alloc = running(&agent, "comes")?;
    // It restarts what the page knows of.
    page.shows("All is well: 1 allocation runs.")?;
    page.click("Restart all")?;
    page.shows("all running allocations of comes in place?")?;
    page.click("Restart all")?;
    until("the restart", BOUND, || {
        let now = agent.get(&format!("/v1/allocation/{alloc}"))?;
        Ok((now["TaskStates"]["t"]["Restarts"] == 1).then_some(()))
    })?;
    page.click("Stop without delay")?;
    page.shows("and leave its shutdown_delay out?")?;
    page.click("Stop without delay")?;
    page.click("Purge")?;
    page.shows("Forget comes")?;
    page.click("Purge")?;
    page.shows("No job has been registered yet.")
}

fn topology(page: &mut Page) -> Result<()> {
    let agent = started("web-topology")?;
    agent.submit(&sleeps("takes").body())?;
    running(&agent, "takes")?;
    let node = &agent.list("/v1/nodes?resources=true")?[0];
    let of = |path: &str| node.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let cpu = of("/NodeResources/Cpu/CpuShares") - of("/ReservedResources/Cpu/CpuShares");
    let memory = of("/NodeResources/Memory/MemoryMB") - of("/ReservedResources/Memory/MemoryMB");
    let alloc = &agent.list("/v1/allocations?resources=true")?[0];
    let taken = |path: &str| alloc.pointer(&format!("/AllocatedResources/Tasks/t/{path}")).and_then(Value::as_i64);
    let cpu_taken = taken("Cpu/CpuShares").context("its CPU")?;
    let memory_taken = taken("Memory/MemoryMB").context("its memory")?;
    page.open(&format!("{}/ui/topology", agent.address()))?;
    // Of the datacenter, and of its one node.
    for sum in [format!("{cpu_taken} of {cpu} MHz"), format!("{memory_taken} of {memory} MiB")] {
        page.until(&sum, &format!("document.body.innerText.split({}).length === 3", json!(sum)))?;
    }
    page.fill("Fits MHz", &((cpu - cpu_taken) / 3).to_string())?;
    page.shows("It fits 3 times, on 1 of 1 nodes.")?;
    page.fill("and MiB", &memory.to_string())?;
    page.shows("It fits on no node.")?;
    page.open(&format!("{}/ui/topology?q=takes", agent.address()))?;
    page.until("the job is marked", "document.querySelector('a.marked')?.textContent === 'takes'")?;
    end(&agent, "takes")
}

fn unplaced(page: &mut Page) -> Result<()> {
    let agent = started("web-unplaced")?;
    let of_class = |class: &str| {
        let only = json!([{"LTarget": "${node.class}", "RTarget": class, "Operand": "="}]);
        sleeps("picky").group(json!({"Constraints": only})).body()
    };
    agent.submit(&of_class("large"))?;
    page.open(&format!("{}/ui/jobs", agent.address()))?;
    page.shows("1 not placed")?;
    page.click("picky")?;
    page.shows("Not everything is placed")?;
    page.shows("1 filtered by ${node.class} = large (web-unplaced)")?;
    page.shows("What would help: a node where ${node.class} = large. The servers try again by themselves.")?;
    page.document("unplaced")?;
    agent.submit(&sleeps("picky").body())?;
    page.hides("Not everything is placed")?;
    page.shows("running")?;
    end(&agent, "picky")
}

const FILE: &str = r#"job "typed" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["71016"]
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
"#;

fn run(page: &mut Page) -> Result<()> {
    let agent = started("web-run")?;
    page.open(&format!("{}/ui/jobs/run", agent.address()))?;
    page.fill("Job file", "job \"typed\" {\n  colour = \"blue\"\n}\n")?;
    page.click("Plan")?;
    page.shows("colour")?;
    page.fill("Job file", FILE)?;
    page.click("Plan")?;
    page.shows("command: /bin/sleep")?;
    page.shows("g: Place 1")?;
    // Somebody else was faster.
    agent.submit(&sleeps("typed").body())?;
    // As a stock server, ours answers that with 500.
    page.expect("/v1/jobs");
    page.click("Run")?;
    page.shows("Enforcing job modify index")?;
    page.click("Plan")?;
    page.shows("71015 → 71016")?;
    page.click("Run")?;
    page.shows("Registered:")?;
    page.click("typed")?;
    page.shows("running")?;
    let source = agent.get("/v1/job/typed/submission?version=1")?;
    ensure!(source["Source"] == FILE, "the file is kept as it was typed: {source}");
    // The file is where the job is, with its comments and in its order, and is changed there.
    page.click("Definition")?;
    page.shows("command = \"/bin/sleep\"")?;
    page.click("Edit")?;
    page.until("the file", "document.querySelector('[aria-label=\"Job file\"]')?.value.includes('71016')")?;
    page.fill(
        "Job file",
        &FILE
            .replace("[\"71016\"]", "[var.seconds]")
            .replace("job ", "variable \"seconds\" {}\nvariable \"note\" {}\njob "),
    )?;
    page.eval("document.querySelector('summary').click()")?;
    // Values keep their quotes, escapes, lines and letters.
    let variables = "seconds = \"71027\"\nnote = \"a \\\"b\\\" $${c} zwölf\\n%%{d}\"";
    page.fill("Variables", variables)?;
    page.click("Plan")?;
    page.shows("71016 → 71027")?;
    page.click("Run")?;
    page.shows("Registered:")?;
    let source = agent.get("/v1/job/typed/submission?version=2")?;
    ensure!(source["Variables"] == variables, "{source}");
    page.open(&format!("{}/ui/jobs/run?job=typed&namespace=default", agent.address()))?;
    let kept = format!("document.querySelector('[aria-label=\"Variables\"]')?.value === {}", json!(variables));
    page.until("the variables", &kept)?;
    // A job of a program has no file: it is changed as JSON.
    agent.submit(&sleeps("typed").body())?;
    page.open(&format!("{}/ui/jobs/run?job=typed&namespace=default", agent.address()))?;
    page.until("the job", "document.querySelector('[aria-label=\"Job file\"]')?.value.startsWith('{')")?;
    page.eval(
        "(() => { const field = document.querySelector('[aria-label=\"Job file\"]'); \
         field.value = field.value.replace('71015', '71028'); \
         field.dispatchEvent(new Event('input', { bubbles: true })); })()",
    )?;
    page.click("Plan")?;
    page.shows("71015 → 71028")?;
    page.click("Run")?;
    page.shows("Registered:")?;
    end(&agent, "typed")
}

fn canary(page: &mut Page) -> Result<()> {
    let agent = started("web-canary")?;
    let update = json!({"MaxParallel": 1, "Canary": 1, "MinHealthyTime": 100_000_000, "HealthCheck": "task_states"});
    let rolls = |n: &str| {
        let job = Job::command("rolls", "service", "raw_exec", "/bin/sleep", &["71024"]);
        job.group(json!({"Update": update})).task(json!({"Env": {"N": n}})).body()
    };
    let successful = |n: usize| {
        let states = "[...document.querySelectorAll('td .state')]";
        format!("{states}.filter((e) => e.innerText.includes('successful')).length === {n}")
    };
    agent.submit(&rolls("first"))?;
    page.open(&format!("{}/ui/jobs/rolls@default/deployments", agent.address()))?;
    page.until("the first deployment", &successful(1))?;
    page.until("its one allocation", "document.querySelectorAll('svg.steps').length === 1")?;
    agent.submit(&rolls("second"))?;
    page.shows("waits for somebody who promotes g")?;
    page.shows("canary")?;
    page.click("Promote")?;
    page.shows("Promote all canaries of this deployment?")?;
    page.click("Promote")?;
    page.until("the second deployment", &successful(2))?;
    end(&agent, "rolls")
}

fn children(page: &mut Page) -> Result<()> {
    let agent = started("web-children")?;
    let fails = "test \"$NOMAD_META_how\" = well";
    let mut template = Job::script("template", "batch", "raw_exec", fails).body();
    template["Job"]["ParameterizedJob"] = json!({"MetaRequired": ["how"], "Payload": "optional"});
    let policy = json!({"Attempts": 0, "Mode": "fail"});
    template["Job"]["TaskGroups"][0]["RestartPolicy"] = policy;
    template["Job"]["TaskGroups"][0]["ReschedulePolicy"] = json!({"Attempts": 0, "Unlimited": false});
    agent.submit(&template)?;
    page.open(&format!("{}/ui/jobs/template@default/dispatch", agent.address()))?;
    // As a stock server, ours answers that with 500.
    page.expect("/v1/job/template/dispatch");
    page.click("Dispatch")?;
    // What is missing is said by the server.
    page.shows("how")?;
    for (how, result) in [("well", "complete"), ("badly", "failed")] {
        page.fill("how", how)?;
        page.fill("Payload", "zwölf")?;
        page.click("Dispatch")?;
        page.shows("template/dispatch-")?;
        page.until(
            result,
            &format!("[...document.querySelectorAll('td')].some((e) => e.textContent.includes('{result}'))"),
        )?;
    }
    page.until("two squares", "document.querySelectorAll('.squares a').length === 2")?;
    page.open(&format!("{}/ui/jobs", agent.address()))?;
    page.shows("children: 2 dead")?;
    page.until("one row", "document.querySelectorAll('tbody tr').length === 1")?;
    page.eval("document.querySelector('input[type=checkbox]').click()")?;
    page.until("three rows", "document.querySelectorAll('tbody tr').length === 3")?;
    // A number is a filter.
    page.eval("document.querySelector('button.count').click()")?;
    page.until("the one that failed", "document.querySelectorAll('tbody tr').length === 1")?;
    page.open(&format!("{}/ui/jobs?children=all&q=failed", agent.address()))?;
    page.until("a link that shows what failed", "document.querySelectorAll('tbody tr').length === 1")?;
    let mut hourly = Job::command("hourly", "batch", "raw_exec", "/bin/sleep", &["71023"]).body();
    hourly["Job"]["Periodic"] = json!({"Enabled": true, "Spec": "0 0 1 1 *", "SpecType": "cron", "TimeZone": "UTC"});
    agent.submit(&hourly)?;
    page.open(&format!("{}/ui/jobs/hourly@default/dispatch", agent.address()))?;
    page.shows("0 0 1 1 *")?;
    page.shows("Next launch")?;
    page.click("Launch now")?;
    page.shows("whatever the time is?")?;
    page.click("Launch now")?;
    page.shows("hourly/periodic-")?;
    let child = until("its child", BOUND, || {
        let jobs = agent.list("/v1/jobs?prefix=hourly/")?;
        Ok(jobs.first().and_then(|job| job["ID"].as_str().map(str::to_owned)))
    })?;
    running(&agent, &child)?;
    end(&agent, &child)
}

fn found(page: &mut Page) -> Result<()> {
    let agent = started("web-found")?;
    agent.submit(&sleeps("needle-in-hay").body())?;
    running(&agent, "needle-in-hay")?;
    page.open(&format!("{}/ui/jobs", agent.address()))?;
    page.shows("needle-in-hay")?;
    page.key_with("k", 2)?;
    let ready = "document.activeElement?.getAttribute('aria-label') === 'Go to'";
    page.until("the field", ready)?;
    page.fill("Go to", "topo")?;
    page.key("Enter")?;
    page.until("the page", "document.querySelector('h1')?.textContent === 'Topology'")?;
    page.click("Go to")?;
    page.until("the field", ready)?;
    page.fill("Go to", "needle")?;
    page.until("two matches", "document.querySelectorAll('#found li').length === 2")?;
    page.shows("allocation")?;
    page.key("Enter")?;
    page.until("the page", "document.querySelector('h1')?.textContent === 'needle-in-hay'")?;
    page.click("Go to")?;
    page.until("the field", ready)?;
    page.fill("Go to", "web-found")?;
    page.until("the node", "document.querySelector('#found li')?.textContent.startsWith('web-found')")?;
    page.fill("Go to", "no such name anywhere")?;
    page.shows("Nothing has such a name.")?;
    page.key("Escape")?;
    page.until("no field any more", "!document.querySelector('dialog')")?;
    end(&agent, "needle-in-hay")
}

fn trends(page: &mut Page) -> Result<()> {
    let agent = started("web-trends")?;
    agent.submit(&sleeps("one").body())?;
    let alloc = running(&agent, "one")?;
    page.open(&format!("{}/ui/allocations/{alloc}", agent.address()))?;
    page.until("lines of its use", "document.querySelectorAll('.chart polyline').length === 4")?;
    page.open(&format!("{}/ui/trends", agent.address()))?;
    page.shows("running: 1")?;
    page.until("lines", "document.querySelectorAll('.chart polyline').length === 10")?;
    end(&agent, "one")
}

fn tabs(page: &mut Page) -> Result<()> {
    let agent = started("web-tabs")?;
    let at = format!("{}/ui/jobs", agent.address());
    page.open(&at)?;
    page.shows("No job has been registered yet.")?;
    let leads = "navigator.locks.query().then((all) => all.held[0]?.clientId ?? '')";
    let leader = |page: &mut Page| {
        until("a tab that holds the stream", BOUND, || Ok(Some(page.eval(leads)?).filter(|id| *id != "")))
    };
    let first = leader(page)?;
    let mut tabs = Vec::new();
    // More than a browser opens connections.
    for _ in 0..7 {
        tabs.push(page.another()?);
        page.open(&at)?;
        page.shows("No job has been registered yet.")?;
    }
    agent.submit(&sleeps("first").body())?;
    page.shows("first")?;
    for tab in &tabs {
        page.turn(tab);
        page.shows("first")?;
    }
    // The tab that holds the stream for all is hidden: another one takes over.
    let hidden = |yes: bool| {
        format!(
            "Object.defineProperty(document, 'hidden', {{value: {yes}, configurable: true}}); \
             document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    page.turn(&tabs[0]);
    page.eval(&hidden(true))?;
    until("another tab that holds it", BOUND, || Ok((leader(page)? != first).then_some(())))?;
    agent.submit(&sleeps("second").body())?;
    for tab in &tabs[1..] {
        page.turn(tab);
        page.shows("second")?;
    }
    page.turn(&tabs[0]);
    ensure!(page.eval("document.body.innerText.includes('second')")? == false, "a hidden tab has asked");
    page.eval(&hidden(false))?;
    page.shows("second")?;
    end(&agent, "first")?;
    end(&agent, "second")
}

fn variables(page: &mut Page) -> Result<()> {
    let agent = started("web-variables")?;
    page.open(&format!("{}/ui/variables", agent.address()))?;
    page.click("New variable")?;
    page.fill("Path", "nomad/jobs/web")?;
    page.fill("Name 1", "password")?;
    page.fill("Value 1", "hush")?;
    page.click("Save")?;
    page.until("the page of the variable", "document.querySelector('h1')?.textContent === 'nomad/jobs/web'")?;
    let made = agent.get("/v1/var/nomad/jobs/web")?;
    ensure!(made["Items"] == json!({"password": "hush"}), "{made}");
    // It is masked until somebody asks for it.
    page.until("a masked value", "document.querySelector('[aria-label=\"Value 1\"]')?.type === 'password'")?;
    page.click("Show values")?;
    page.until("the value", "document.querySelector('[aria-label=\"Value 1\"]')?.type === 'text'")?;
    page.fill("Value 1", "mine")?;
    // What is typed stays when somebody else writes, and neither is lost unseen.
    agent.put("/v1/var/nomad/jobs/web", &json!({"Path": "nomad/jobs/web", "Items": {"password": "theirs"}}))?;
    page.shows("Somebody has changed it meanwhile")?;
    page.shows("password = theirs")?;
    page.click("Write mine over it")?;
    until("the write", BOUND, || {
        Ok((agent.get("/v1/var/nomad/jobs/web")?["Items"]["password"] == "mine").then_some(()))
    })?;
    page.hides("Somebody has changed it meanwhile")?;
    // Nothing is typed: what others write is shown.
    agent.put("/v1/var/nomad/jobs/web", &json!({"Path": "nomad/jobs/web", "Items": {"password": "later"}}))?;
    page.until("the new value", "document.querySelector('[aria-label=\"Value 1\"]')?.value === 'later'")?;
    page.open(&format!("{}/ui/variables/var/nomad%2Fjobs%2Fweb@default", agent.address()))?;
    page.click("Delete")?;
    page.shows("Delete the variable nomad/jobs/web?")?;
    page.click("Delete")?;
    page.shows("There is no variable here")
}

fn hostile(page: &mut Page) -> Result<()> {
    let agent = started("web-hostile")?;
    let evil = "<img/src=x/onerror=window.hacked=1>";
    let name = format!("a{evil}");
    let mut job = Job::script(&name, "service", "raw_exec", &format!("echo '{evil}'; exec sleep 71018")).undeployed();
    job = job.group(json!({"Meta": {"m": evil}}));
    agent.submit(&job.body())?;
    let path: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let alloc = until("its allocation", BOUND, || {
        let allocs = agent.list("/v1/allocations")?;
        Ok(allocs.iter().find(|a| a["ClientStatus"] == "running").and_then(|a| a["ID"].as_str().map(str::to_owned)))
    })?;
    for link in [
        "/ui/jobs".to_owned(),
        format!("/ui/jobs/{path}@default"),
        format!("/ui/jobs/{path}@default/definition"),
        format!("/ui/jobs/{path}@default/evaluations"),
        format!("/ui/allocations/{alloc}"),
        format!("/ui/allocations/{alloc}/t/logs"),
    ] {
        page.open(&format!("{}{link}", agent.address()))?;
        page.shows(evil).with_context(|| link.clone())?;
        let made = page.eval("window.hacked === undefined && !document.querySelector('main img')")?;
        ensure!(made == true, "{link}: a name has become an element");
    }
    agent.delete(&format!("/v1/job/{path}"))?;
    until("the end of its task", BOUND, || Ok(local::processes_like("sleep 71018").is_empty().then_some(())))
}

fn login(page: &mut Page) -> Result<()> {
    let mut agent = Agent::start("web-login", &[], cluster::SECURED)?;
    let token = agent.bootstrap()?;
    agent.until_healthy(&["raw_exec"], 1)?;
    agent.submit(&sleeps("hidden").body())?;
    running(&agent, "hidden")?;
    page.open(&format!("{}/ui/jobs/hidden@default", agent.address()))?;
    page.shows("Permission denied")?;
    page.click("Log in with a token")?;
    page.fill("Token", "0badc0de-1111-4222-8333-444455556666")?;
    page.click("Use this token")?;
    page.shows("Permission denied")?;
    page.click("Log in with a token")?;
    page.fill("Token", &token)?;
    page.click("Use this token")?;
    page.shows("hidden.g[0]")?;
    let address = page.eval("location.href + JSON.stringify(localStorage) + document.cookie")?;
    ensure!(!address.as_str().is_some_and(|text| text.contains(&token)), "the token is where it stays: {address}");
    // A link that logs in once: its secret leaves the address before anything is asked for.
    let made = agent.put("/v1/acl/token/onetime", &json!({}))?;
    let secret = made["OneTimeToken"]["OneTimeSecretID"].as_str().context("a one-time token")?;
    page.eval("sessionStorage.clear()")?;
    page.open(&format!("{}/ui/jobs/hidden@default?ott={secret}", agent.address()))?;
    page.shows("hidden.g[0]")?;
    let address = page.eval("location.href + document.referrer")?;
    ensure!(!address.as_str().is_some_and(|text| text.contains(secret)), "it stays in the address: {address}");
    let used = page.eval("sessionStorage.getItem('drover-token')")?;
    ensure!(used.as_str() == Some(token.as_str()), "the token of the one who made it");
    page.eval("sessionStorage.clear()")?;
    page.open(&format!("{}/ui/jobs/hidden@default?ott={secret}", agent.address()))?;
    page.shows("The link has been used before")?;
    page.fill("Token", &token)?;
    page.click("Use this token")?;
    page.open(&format!("{}/ui/jobs/hidden@default", agent.address()))?;
    agent.delete("/v1/job/hidden")?;
    page.shows("The job is stopped.")?;
    page.shows("complete")
}

fn logins(page: &mut Page) -> Result<()> {
    let mut agent = Agent::start("web-logins", &[], cluster::SECURED)?;
    agent.bootstrap()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let provider = runtime.block_on(Provider::start());
    let at = format!("{}/ui/settings/tokens", agent.address());
    let method = |name: &str, kind: &str, config: Value| {
        let mut method = json!({"Name": name, "Type": kind, "TokenLocality": "local", "MaxTokenTTL": "1h"});
        method["Config"] = config;
        agent.put("/v1/acl/auth-method", &method)?;
        agent.put("/v1/acl/binding-rule", &json!({"AuthMethod": name, "BindType": "management"}))
    };
    let (client, secret) = (oidc_fake::CLIENT, oidc_fake::SECRET);
    method(
        "people",
        "OIDC",
        json!({"OIDCDiscoveryURL": provider.url, "OIDCClientID": client, "OIDCClientSecret": secret,
            "OIDCEnablePKCE": true, "AllowedRedirectURIs": [at], "OIDCDisableUserInfo": true}),
    )?;
    let keys = format!("{}/keys", provider.url);
    let (audience, issuer) = (["drover"], [provider.url.clone()]);
    method("ci", "JWT", json!({"JWKSURL": keys, "BoundAudiences": audience, "BoundIssuer": issuer}))?;
    // To the provider and back to where the person wanted to be.
    page.open(&format!("{}/ui/clients", agent.address()))?;
    page.shows("Permission denied")?;
    page.click("Log in with a token")?;
    page.click("Log in with people")?;
    page.shows("web-logins")?;
    let address = page.eval("location.pathname + location.search")?;
    ensure!(address == "/ui/clients", "what the provider says is in no address: {address}");
    page.open(&at)?;
    page.shows("everything")?;
    page.click("Forget it")?;
    page.open(&format!("{at}?state=x&error=access_denied&error_description=not+you"))?;
    page.shows("This login was not begun in this tab.")?;
    let now = oidc_fake::now();
    let claims = json!({"iss": provider.url, "aud": "drover", "sub": "ann", "iat": now, "exp": now + 60});
    page.fill("Token", "no.such.token")?;
    page.click("Use it with ci")?;
    page.until("a refusal", "document.querySelector('[role=alert]')")?;
    page.fill("Token", &provider.sign(&claims))?;
    page.click("Use it with ci")?;
    page.shows("everything")
}

fn access(page: &mut Page) -> Result<()> {
    let mut agent = Agent::start("web-access", &[], cluster::SECURED)?;
    let management = agent.bootstrap()?;
    let at = agent.address();
    let use_token = |page: &mut Page, token: &str| {
        page.open(&format!("{at}/ui/settings/tokens"))?;
        page.fill("Token", token)?;
        page.click("Use this token")
    };
    use_token(page, &management)?;
    page.shows("everything")?;
    page.open(&format!("{at}/ui/administration/policies/new"))?;
    page.fill("Name", "readers")?;
    page.fill("Rules", "namespace \"default\" {\n  policy = \"raed\"\n}\n")?;
    page.click("Save")?;
    page.shows("raed")?;
    page.fill("Rules", "namespace \"default\" {\n  policy = \"read\"\n}\n")?;
    page.click("Save")?;
    page.until("the list", "location.pathname === '/ui/administration/policies'")?;
    page.shows("readers")?;
    page.open(&format!("{at}/ui/administration/roles/new"))?;
    page.fill("Name", "people")?;
    page.fill("Policies", "readers")?;
    page.click("Save")?;
    page.until("the list", "location.pathname === '/ui/administration/roles'")?;
    page.shows("people")?;
    page.open(&format!("{at}/ui/administration/tokens/new"))?;
    page.fill("Name", "ci")?;
    page.fill("Policies", "readers")?;
    page.click("Save")?;
    page.shows("Copy the secret now")?;
    let secret = page.eval("document.querySelector('[role=status] code').textContent")?;
    let secret = secret.as_str().context("a secret")?.to_owned();
    page.open(&format!("{at}/ui/administration/tokens"))?;
    page.shows("ci")?;
    page.hides(&secret)?;
    use_token(page, &secret)?;
    page.shows("readers")?;
    page.open(&format!("{at}/ui/jobs"))?;
    page.shows("No job has been registered yet.")?;
    page.open(&format!("{at}/ui/administration/tokens"))?;
    page.shows("Permission denied")?;
    use_token(page, &management)?;
    page.open(&format!("{at}/ui/administration/policies/readers"))?;
    page.click("Delete")?;
    page.shows("Delete the policy readers?")?;
    page.click("Delete")?;
    page.shows("There is no policy.")?;
    page.open(&format!("{at}/ui/administration/namespaces/new"))?;
    page.fill("Name", "team-a")?;
    page.fill("Not these drivers", "raw_exec")?;
    page.fill("Allocations", "3")?;
    page.click("Save")?;
    page.shows("Allocations: 0 of 3")?;
    let made = agent.get("/v1/namespace/team-a")?;
    let wanted = json!([3, ["raw_exec"]]);
    ensure!(json!([made["Limits"]["Allocations"], made["Capabilities"]["DisabledTaskDrivers"]]) == wanted, "{made}");
    page.click("team-a")?;
    page.fill("Memory in MiB", "512")?;
    page.click("Save")?;
    page.shows("Allocations: 0 of 3, Memory in MiB: 0 of 512")?;
    // Who has ten minutes left is told.
    let short = json!({"Name": "short", "Type": "client", "Policies": ["p"], "ExpirationTTL": "300s"});
    let secret = agent.put("/v1/acl/token", &short)?["SecretID"].as_str().context("a secret")?.to_owned();
    page.hides("Your token ends in")?;
    use_token(page, &secret)?;
    page.shows("Your token ends in")
}

fn killed(page: &mut Page) -> Result<()> {
    in_runtime("killed", |dir| manager_killed(page, dir))
}

fn manager_killed(page: &mut Page, dir: &Path) -> Result<()> {
    let (mut server, mut nodes) = two_managers(["web-a", "web-b"], dir)?;
    server.submit(&Job::command("far", "service", "remote_exec", "/bin/sleep", &["71019"]).undeployed().body())?;
    running(&server, "far")?;
    let of_task = |(pid, line): (u32, String)| (line == "/bin/sleep 71019").then_some(pid);
    let pids = || local::processes_of(dir).into_iter().filter_map(of_task).collect::<Vec<_>>();
    let before = pids();
    ensure!(before.len() == 1, "{before:?}");
    page.open(&format!("{}/ui/remote", server.address()))?;
    page.shows("default/far.g[0]/t")?;
    page.click("default/far.g[0]/t")?;
    page.shows("epoch 1")?;
    // What would happen is told before.
    let record = server.records()?.into_iter().next().context("a record")?;
    let node = record["Manager"]["NodeID"].as_str().context("a node")?;
    page.open(&format!("{}/ui/clients/{node}", server.address()))?;
    for what in ["If it is drained", "If it dies now"] {
        page.click(what)?;
        page.shows("handed over, its remote tasks go on")?;
    }
    page.document("preview")?;
    page.open(&format!("{}/ui/remote/default/far.g[0]/t", server.address()))?;
    page.shows("epoch 1")?;
    let manager = record["ManagerName"].as_str().context("a manager")?.to_owned();
    let which = usize::from(manager != "web-a");
    // Nobody can take it over: that is seen. Then the other one comes; the bar of the instance is one.
    nodes[1 - which].crash()?;
    server.until_healthy(&["remote_exec"], 1)?;
    nodes[which].crash()?;
    page.shows("until now; the instance goes on")?;
    nodes[1 - which].restart()?;
    page.shows("epoch 2")?;
    page.shows("then adopted; the instance went on")?;
    let bars =
        page.eval("[document.querySelectorAll('.instance').length, document.querySelectorAll('.lane').length]")?;
    ensure!(bars == json!([1, 2]), "one instance, two managers: {bars}");
    let named = "['web-a', 'web-b'].every((n) => document.querySelector('svg.lanes').textContent.includes(n))";
    page.until("the names of both managers", named)?;
    page.document("remote")?;
    // Nobody gives up what is seen alive by mistake.
    page.click("It is gone")?;
    page.shows("no longer exists?")?;
    page.fill("What to type", "default/far.g[0]/t")?;
    page.expect("/v1/remote/gone/");
    page.click("It is gone")?;
    page.until("why not", "document.querySelector('dialog [role=alert]')?.textContent.trim()")?;
    page.click("Leave it")?;
    page.click("If its manager dies now")?;
    page.shows("no manager for now, its remote tasks go on.")?;
    // Neither do servers that start again interrupt anything.
    server.crash()?;
    server.restart()?;
    until("the server", BOUND, || Ok(server.get("/v1/status/leader").ok()))?;
    page.open(&format!("{}/ui/remote/default/far.g[0]/t", server.address()))?;
    page.shows("the server that leads began")?;
    page.until("the moment on the axis", "document.querySelectorAll('svg.lanes .restart').length === 1")?;
    server.until_healthy(&["remote_exec"], 1)?;
    ensure!(pids() == before, "it is the same process: {before:?}, {:?}", pids());
    server.delete("/v1/job/far")?;
    until("the end of the instance", BOUND, || Ok(pids().is_empty().then_some(())))
}
