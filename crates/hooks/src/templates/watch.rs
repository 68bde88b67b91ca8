//! Templates of a running task. The watch looks at files and tokens every few seconds, and hears of services and
//! variables at once. It renders what has changed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use driver_host::Capabilities;
use host::{clock::now_ns, node_env::TaskSpec};
use lifecycle::alloc::{events, machine::Event};
use model::task::Template;
use sha2::{Digest as _, Sha256};

use super::{
    TELL_AFTER, Templates,
    plan::{self, Attempt, Change, Directories, Inputs, Plan, Planned, Rendered, Script},
    record,
};
use crate::place::TaskPlace;

/// The state of one template.
#[derive(Clone, Debug, Default)]
struct Known {
    digest: String,
    inputs: Inputs,
    /// Last message to people about a failed rendering.
    told: String,
}

impl Templates {
    /// Watches the templates of a run until the caller cancels it at the run's end. Cancel safe.
    pub async fn watch(&self, place: &TaskPlace, run: &str) {
        let Some(spec) = place.spec() else { return };
        let at_start = |t: &Template| t.change_script.as_ref().is_some_and(|s| s.run_on_first_render == Some(true));
        if spec.task.templates.iter().all(|t| t.once == Some(true) && !at_start(t)) {
            return;
        }
        let driver = self.drivers.for_ever(&spec.task.driver).await;
        let capabilities = driver.capabilities().unwrap_or_default();
        if spec.task.templates.iter().any(at_start) {
            match self.begin(place, run, spec, &capabilities).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(why) => {
                    place.tell(events::template(now_ns(), &format!("Scripts for the start did not run: {why}")))
                }
            }
        }
        let mut told = String::new();
        // The next attempt finds an unwritten or unrecorded change again.
        while let Err(why) = self.follow(place, run, spec, &capabilities).await {
            if why != told {
                place.tell(events::template(now_ns(), &format!("Not rendered again, the node goes on trying: {why}")));
                told = why;
            }
            tokio::time::sleep(self.config.poll).await;
        }
    }

    /// Runs the scripts for the first rendering, each once in a start. True when one that must not fail has failed.
    async fn begin(
        &self,
        place: &TaskPlace,
        run: &str,
        spec: TaskSpec<'_>,
        capabilities: &Capabilities,
    ) -> Result<bool, String> {
        let plan = self.plan_of(place, spec, capabilities)?;
        let dir = plan.dirs.root.clone();
        let task_dir = dir.clone();
        let mut applied = blocking(move || Ok(record::load(&task_dir))).await?;
        let mut run_already = Vec::new();
        for planned in &plan.templates {
            let Change::Script(script) = &planned.change else { continue };
            let begun = applied.get(&planned.name).is_some_and(|a| a.begun);
            if !script.at_start || begun {
                continue;
            }
            // Several templates with one script are one first rendering.
            if !run_already.contains(&script) {
                if let Some(why) = self.react(place, run, script).await {
                    let (task, run) = (place.task.clone(), run.to_owned());
                    let _ = place.inbox.send(Event::TemplateFailed { task, run, why });
                    return Ok(true);
                }
                run_already.push(script);
            }
            applied.entry(planned.name.clone()).or_default().begun = true;
            let (dir, applied) = (dir.clone(), applied.clone());
            blocking(move || record::save(&dir, &applied).map_err(|e| format!("remember what has run: {e}"))).await?;
        }
        Ok(false)
    }

    async fn follow(
        &self,
        place: &TaskPlace,
        run: &str,
        spec: TaskSpec<'_>,
        capabilities: &Capabilities,
    ) -> Result<(), String> {
        let mut plan = self.plan_of(place, spec, capabilities)?;
        plan.templates.retain(|t| !t.once);
        let plan = Arc::new(plan);
        let task_dir = plan.dirs.root.clone();
        let mut applied = blocking(move || Ok(record::load(&task_dir))).await?;
        let mut known: BTreeMap<String, Known> = BTreeMap::new();

        // Rendering with the time of the last result gives the same content for the same data. So a recovered task
        // stays as it is.
        let mut version = plan.reads.version();
        let begin = tokio::time::Instant::now();
        let first = loop {
            version.mark_unchanged();
            let (work, times) = (plan.clone(), applied.clone());
            let first = blocking(move || {
                let directories = open(&work)?;
                let render = |t: &Planned| {
                    let now = times.get(&t.name).map_or_else(now_ns, |a| a.now_ns);
                    (t.clone(), plan::render(&work, t, Some(&directories), now), now)
                };
                Ok(work.templates.iter().map(render).collect::<Vec<_>>())
            })
            .await?;
            // No message while answers are still on their way; one that came since the rendering changes it.
            let unknown = first.iter().any(|(_, attempt, _)| attempt.inputs().unknown());
            if !unknown || begin.elapsed() >= TELL_AFTER {
                break first;
            }
            let _ = tokio::time::timeout(TELL_AFTER, version.changed()).await;
        };
        let mut changes = Vec::new();
        for (planned, attempt, now) in first {
            let before = applied.get(&planned.name).map(|a| a.digest.clone());
            let state = known.entry(planned.name.clone()).or_default();
            // Without a record, the present file counts as applied.
            state.digest = before
                .unwrap_or_else(|| if let Attempt::Ready(r) = &attempt { r.digest.clone() } else { String::new() });
            take(place, planned, attempt, now, state, &mut changes);
        }
        loop {
            if !changes.is_empty() {
                let (changes, data) = (std::mem::take(&mut changes), rolling_data(&plan, &known));
                if self.apply(place, run, &plan, changes, &mut applied, &data).await? {
                    // The task is ending.
                    return Ok(());
                }
            }
            if known.values().all(|k| k.inputs.is_empty()) {
                // None of their inputs can change.
                return Ok(());
            }
            self.pause(&plan, &known).await;
            let due = settled(&plan, &mut known).await?;
            if due.is_empty() {
                continue;
            }
            let work = plan.clone();
            let now = now_ns();
            let again = blocking(move || {
                let directories = open(&work)?;
                Ok(due.into_iter().map(|t| (plan::render(&work, &t, Some(&directories), now), t)).collect::<Vec<_>>())
            })
            .await?;
            for (attempt, planned) in again {
                let state = known.entry(planned.name.clone()).or_default();
                take(place, planned, attempt, now, state, &mut changes);
            }
        }
    }

    /// Waits until the next look at files, or a change of services or variables.
    async fn pause(&self, plan: &Plan, known: &BTreeMap<String, Known>) {
        let mut version = plan.reads.version();
        let poll = tokio::time::sleep(self.config.poll);
        tokio::pin!(poll);
        while !plan.reads.any() || !known.values().any(|k| plan.reads.differ(&k.inputs.asked)) {
            tokio::select! {
                () = &mut poll => return,
                Ok(()) = version.changed() => {}
            }
        }
    }

    /// Writes files and makes the changes. True when a change ends the task. `data` is [`rolling_data`].
    async fn apply(
        &self,
        place: &TaskPlace,
        run: &str,
        plan: &Arc<Plan>,
        changes: Vec<Changed>,
        applied: &mut record::Applications,
        data: &str,
    ) -> Result<bool, String> {
        let splay = changes
            .iter()
            .filter(|c| !matches!(c.planned.change, Change::Noop | Change::Rolling))
            .map(|c| c.planned.splay)
            .max()
            .unwrap_or_default();
        let work = plan.clone();
        let changes = blocking(move || {
            let directories = open(&work)?;
            for c in &changes {
                let written = directories.root(&c.planned.destination).write(
                    &c.planned.destination.path,
                    &c.rendered.content,
                    c.planned.look,
                );
                written.map_err(|e| format!("template {:?}: {e}", c.planned.name))?;
            }
            Ok(changes)
        })
        .await?;
        let names: Vec<&str> = changes.iter().map(|c| c.planned.name.as_str()).collect();
        tracing::info!(alloc = %place.alloc.id, task = %place.task, templates = ?names, "rendered again");
        if !splay.is_zero() {
            let ns = u64::try_from(splay.as_nanos()).unwrap_or(u64::MAX);
            tokio::time::sleep(Duration::from_nanos(self.seeds.next() % ns)).await;
        }
        if changes.iter().any(|c| c.planned.change == Change::Restart) {
            // The start that follows saves the record. If the agent dies before, the next one finds the change again.
            let (task, run) = (place.task.clone(), run.to_owned());
            let _ = place.inbox.send(Event::DataChanged { task, run, why: events::BY_TEMPLATE.to_owned() });
            return Ok(true);
        }
        // The task goes on with its old data until it is its turn, and its other templates are followed meanwhile.
        let (rolling, changes): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|c| c.planned.change == Change::Rolling);
        if !rolling.is_empty() {
            let (task, run) = (place.task.clone(), run.to_owned());
            let _ = place.inbox.send(Event::RollingRestartAsked { task, run, data: data.to_owned() });
        }
        let mut wanted: Vec<&Change> = changes.iter().map(|c| &c.planned.change).collect();
        wanted.sort();
        wanted.dedup();
        for change in wanted {
            let failure = match change {
                Change::Noop | Change::Restart | Change::Rolling => None,
                Change::Signal(signal) => {
                    place.tell(events::template_signaling(now_ns(), signal));
                    let sent = self.drivers.signal(place.driver_name(), run, signal).await;
                    sent.err().map(|why| format!("Template failed to send the signal {signal}: {why}"))
                }
                Change::Script(script) => self.react(place, run, script).await,
            };
            if let Some(why) = failure {
                let (task, run) = (place.task.clone(), run.to_owned());
                let _ = place.inbox.send(Event::TemplateFailed { task, run, why });
                return Ok(true);
            }
        }
        for c in changes {
            let begun = applied.get(&c.planned.name).is_some_and(|a| a.begun);
            applied.insert(c.planned.name, record::Applied { digest: c.rendered.digest, now_ns: c.now, begun });
        }
        let (dir, applied) = (plan.dirs.root.clone(), applied.clone());
        blocking(move || record::save(&dir, &applied).map_err(|e| format!("remember what was rendered: {e}"))).await?;
        Ok(false)
    }

    /// Runs a script and tells of it; why the task is to end, if it is.
    async fn react(&self, place: &TaskPlace, run: &str, script: &Script) -> Option<String> {
        let Script { command, timeout, fail_on_error, at_start: _ } = script;
        let failure = self.script(place, run, command, *timeout).await;
        let said = match &failure {
            None => format!("Template ran script {command:?}"),
            Some(why) => format!("Template ran script {command:?}, which failed: {why}"),
        };
        place.tell(events::template(now_ns(), &said));
        failure.filter(|_| *fail_on_error).map(|why| format!("Template script {command:?} failed: {why}"))
    }

    /// Runs a command in the task; an error says how it failed.
    async fn script(&self, place: &TaskPlace, run: &str, command: &[String], timeout: Duration) -> Option<String> {
        let driver = match self.drivers.in_time(place.driver_name()).await {
            Ok(driver) => driver,
            Err(why) => return Some(why),
        };
        match driver.exec_task(run, command.to_vec(), timeout).await {
            Ok(result) if result.exit.exit_code == 0 && result.exit.signal == 0 => None,
            Ok(result) => {
                // Some drivers deliver both streams as one.
                let said =
                    String::from_utf8_lossy(if result.stderr.is_empty() { &result.stdout } else { &result.stderr });
                let said: String = said.trim().chars().take(200).collect();
                let said = if said.is_empty() { String::new() } else { format!(": {said}") };
                Some(format!("exit code {}{said}", result.exit.exit_code))
            }
            Err(e) => Some(e.to_string()),
        }
    }
}

/// A digest of what the templates with `rolling` have rendered.
fn rolling_data(plan: &Plan, known: &BTreeMap<String, Known>) -> String {
    let mut digest = Sha256::new();
    for planned in plan.templates.iter().filter(|planned| planned.change == Change::Rolling) {
        digest.update(known.get(&planned.name).map_or("", |known| known.digest.as_str()));
    }
    digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A rendered template whose content differs from the task's file.
struct Changed {
    planned: Planned,
    rendered: Rendered,
    now: i64,
}

fn take(
    place: &TaskPlace,
    planned: Planned,
    attempt: Attempt,
    now: i64,
    state: &mut Known,
    changes: &mut Vec<Changed>,
) {
    let why = match attempt {
        Attempt::Ready(rendered) => {
            state.told.clear();
            state.inputs.clone_from(&rendered.inputs);
            if rendered.digest != state.digest {
                state.digest.clone_from(&rendered.digest);
                changes.push(Changed { planned, rendered, now });
            }
            return;
        }
        Attempt::Waiting(what, inputs) => {
            state.inputs = inputs;
            format!("Missing: {}", what.into_iter().collect::<Vec<_>>().join(", "))
        }
        Attempt::Failed(why, inputs) => {
            state.inputs = inputs;
            format!("Not rendered again: {why}")
        }
    };
    // The task keeps its present file.
    if why != state.told {
        place.tell(events::template(now_ns(), &why));
        state.told = why;
    }
}

/// Templates whose data has changed and then stayed quiet for the job's `wait`.
async fn settled(plan: &Arc<Plan>, known: &mut BTreeMap<String, Known>) -> Result<Vec<Planned>, String> {
    let look = async |known: &BTreeMap<String, Known>| {
        let (work, inputs) =
            (plan.clone(), known.iter().map(|(n, k)| (n.clone(), k.inputs.clone())).collect::<BTreeMap<_, _>>());
        blocking(move || {
            let directories = open(&work)?;
            let is = |t: &&Planned| {
                inputs.get(&t.name).is_some_and(|i| !i.is_empty() && plan::changed(&work, &directories, i))
            };
            Ok(work.templates.iter().filter(is).cloned().collect::<Vec<_>>())
        })
        .await
    };
    let due = look(known).await?;
    let quiet = due.iter().map(|t| t.wait.0).max().unwrap_or_default();
    let longest = due.iter().map(|t| t.wait.1).max().unwrap_or_default();
    let begin = tokio::time::Instant::now();
    let mut seen = due;
    while !quiet.is_zero() && !seen.is_empty() && begin.elapsed() < longest {
        for t in &seen {
            // Their present inputs count as known: the next change is a later one.
            let (work, planned) = (plan.clone(), t.clone());
            let attempt = blocking(move || Ok(plan::render(&work, &planned, Some(&open(&work)?), now_ns()))).await?;
            if let Some(state) = known.get_mut(&t.name) {
                state.inputs.clone_from(attempt.inputs());
            }
        }
        tokio::time::sleep(quiet.min(longest.saturating_sub(begin.elapsed()))).await;
        let again = look(known).await?;
        if again.is_empty() {
            break;
        }
        for t in again {
            if !seen.contains(&t) {
                seen.push(t);
            }
        }
    }
    Ok(seen)
}

fn open(plan: &Plan) -> Result<Directories, String> {
    Directories::open(&plan.dirs).map_err(|e| format!("open the task's directories: {e}"))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    blocking::spawn(work).await.unwrap_or_else(|e| Err(format!("rendering broke off: {e}")))
}
