//! Jobs as their authors write them, from parts.

use std::fmt::Write as _;

/// Ends with the code that it is told over a pipe in its directory; without children, and without using time.
pub(super) const TOLD: &str =
    "[ -p $NOMAD_TASK_DIR/tell ] || mkfifo $NOMAD_TASK_DIR/tell; read code <>$NOMAD_TASK_DIR/tell; exit $code";

/// A job of one group `g` with one task `t`, and more groups and tasks as text. A semicolon in a part begins a new
/// line.
#[derive(Clone, Debug)]
pub(super) struct Job {
    name: String,
    kind: &'static str,
    job: String,
    count: Option<u32>,
    update: String,
    restart: String,
    reschedule: String,
    group: String,
    task: String,
    script: String,
    more_tasks: String,
    more_groups: String,
}

impl Job {
    fn new(kind: &'static str, script: &str) -> Self {
        Self {
            name: "JOB".into(),
            kind,
            job: String::new(),
            count: None,
            update: String::new(),
            restart: "attempts = 0; mode = \"fail\"".into(),
            reschedule: "attempts = 0; unlimited = false".into(),
            group: String::new(),
            task: String::new(),
            script: script.into(),
            more_tasks: String::new(),
            more_groups: String::new(),
        }
    }
    /// A service whose task runs until it is told to end.
    pub(super) fn service() -> Self {
        Self { update: "min_healthy_time = \"300ms\"".into(), ..Self::new("service", TOLD) }
    }
    /// A batch job with this script.
    pub(super) fn batch(script: &str) -> Self {
        Self::new("batch", script)
    }
    /// A system job whose tasks run until they are told to end.
    pub(super) fn system() -> Self {
        Self { reschedule: String::new(), ..Self::new("system", TOLD) }
    }
    /// A batch job for each node.
    pub(super) fn sysbatch(script: &str) -> Self {
        Self { reschedule: String::new(), ..Self::new("sysbatch", script) }
    }
    pub(super) fn is_service(&self) -> bool {
        self.kind == "service"
    }
    /// Another job of the scenario.
    pub(super) fn named(mut self, name: &str) -> Self {
        self.name = format!("JOB-{name}");
        self
    }
    pub(super) fn count(mut self, n: u32) -> Self {
        self.count = Some(n);
        self
    }
    /// Lines of the job.
    pub(super) fn job(mut self, lines: &str) -> Self {
        self.job = format!("{}\n{lines}", self.job);
        self
    }
    /// Lines of the group.
    pub(super) fn group(mut self, lines: &str) -> Self {
        self.group = format!("{}\n{lines}", self.group);
        self
    }
    /// Lines of the task.
    pub(super) fn task(mut self, lines: &str) -> Self {
        self.task = format!("{}\n{lines}", self.task);
        self
    }
    pub(super) fn script(mut self, script: &str) -> Self {
        self.script = script.into();
        self
    }
    /// Lines of `update`; empty leaves it out.
    pub(super) fn update(mut self, lines: &str) -> Self {
        self.update = lines.into();
        self
    }
    pub(super) fn restart(mut self, lines: &str) -> Self {
        self.restart = lines.into();
        self
    }
    pub(super) fn reschedule(mut self, lines: &str) -> Self {
        self.reschedule = lines.into();
        self
    }
    /// One more task of the group.
    pub(super) fn with_task(mut self, name: &str, script: &str, lines: &str) -> Self {
        self.more_tasks.push_str(&task(name, script, lines));
        self
    }
    /// One more group, with one task of its own.
    pub(super) fn with_group(mut self, name: &str, lines: &str, script: &str) -> Self {
        let _ = writeln!(self.more_groups, "group {name:?} {{\n{}\n{}}}", block_lines(lines), task("t", script, ""));
        self
    }
    /// As HCL.
    pub(super) fn hcl(&self) -> String {
        let block = |name: &str, lines: &str| {
            if lines.is_empty() { String::new() } else { format!("{name} {{\n{}\n}}\n", block_lines(lines)) }
        };
        let count = self.count.map(|n| format!("count = {n}\n")).unwrap_or_default();
        format!(
            "job {:?} {{\ntype = {:?}\n{}\n{}group \"g\" {{\n{count}{}{}{}\n{}{}}}\n{}}}\n",
            self.name,
            self.kind,
            block_lines(&self.job),
            block("update", &self.update),
            block("restart", &self.restart),
            block("reschedule", &self.reschedule),
            block_lines(&self.group),
            task("t", &self.script, &self.task),
            self.more_tasks,
            self.more_groups,
        )
    }
}

fn block_lines(lines: &str) -> String {
    lines.replace(';', "\n")
}

fn task(name: &str, script: &str, lines: &str) -> String {
    let resources = if lines.contains("resources") { "" } else { "resources {\ncpu = 20\nmemory = 20\n}\n" };
    format!(
        "task {name:?} {{\ndriver = \"raw_exec\"\nconfig {{\ncommand = \"/bin/sh\"\nargs = [\"-c\", \
            <<X\n{script}\nX\n]\n}}\n{resources}{}\n}}\n",
        block_lines(lines)
    )
}
