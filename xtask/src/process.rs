//! Running other programs, with errors that say which.

use std::{
    ffi::OsString,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// Before each further try of what needs somebody else's server.
const PAUSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(20), Duration::from_secs(60)];

/// Does what needs a registry of packages. Such a server may be slow or out of order for a moment, which says nothing
/// of what is checked: it is tried again after longer and longer pauses.
pub(crate) fn patiently<T>(once: impl FnMut() -> Result<T>) -> Result<T> {
    with_pauses(&PAUSES, once)
}

fn with_pauses<T>(pauses: &[Duration], mut once: impl FnMut() -> Result<T>) -> Result<T> {
    for pause in pauses {
        match once() {
            Ok(done) => return Ok(done),
            Err(error) => eprintln!("xtask: {error:#}; again in {} s", pause.as_secs()),
        }
        // Nothing tells when a server is well again.
        std::thread::sleep(*pause);
    }
    once()
}

/// A command to be run.
pub(crate) struct Run {
    program: OsString,
    args: Vec<OsString>,
    dir: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
    quiet: bool,
    input: Vec<u8>,
}

impl Run {
    /// A program with its arguments.
    pub(crate) fn new<A: Into<OsString>>(program: impl Into<OsString>, args: impl IntoIterator<Item = A>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            dir: None,
            env: Vec::new(),
            quiet: false,
            input: Vec::new(),
        }
    }
    /// Working directory.
    pub(crate) fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
    /// A variable of its environment.
    pub(crate) fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
    /// Throws the program's output away.
    pub(crate) fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }
    /// What [`Run::output`] lets the program read.
    pub(crate) fn input(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.input = text.into();
        self
    }
    fn text(&self) -> String {
        let mut text = self.program.to_string_lossy().into_owned();
        for a in &self.args {
            text.push(' ');
            text.push_str(&a.to_string_lossy());
        }
        text
    }
    fn command(&self) -> Command {
        let mut c = Command::new(&self.program);
        c.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        if let Some(d) = &self.dir {
            c.current_dir(d);
        }
        if self.quiet {
            c.stdout(Stdio::null()).stderr(Stdio::null());
        }
        c
    }
    /// Runs it to its end; its output goes where ours goes.
    pub(crate) fn run(&self) -> Result<()> {
        let status = self.command().status().with_context(|| format!("could not start `{}`", self.text()))?;
        if !status.success() {
            bail!("`{}` failed: {status}", self.text());
        }
        Ok(())
    }
    /// As [`Run::run`], for a program that fetches something: see [`patiently`].
    pub(crate) fn run_patiently(&self) -> Result<()> {
        patiently(|| self.run())
    }
    /// Runs it and takes its standard output.
    pub(crate) fn output(&self) -> Result<String> {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("could not start `{}`", self.text()))?;
        // Beside reading its output: either side may fill a pipe. A program that does not read its input may have ended
        // already.
        let stdin = child.stdin.take();
        let out = std::thread::scope(|scope| {
            scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(&self.input)));
            child.wait_with_output()
        })?;
        if !out.status.success() {
            bail!("`{}` failed: {}", self.text(), out.status);
        }
        String::from_utf8(out.stdout).with_context(|| format!("`{}` printed something that is not UTF-8", self.text()))
    }
    /// Whether it can be started and ends well.
    pub(crate) fn succeeds(self) -> bool {
        self.quiet().command().status().is_ok_and(|s| s.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_and_the_last_failure_is_told() {
        let pauses = [Duration::ZERO; 2];
        let mut tries = 0;
        let mut third = || {
            tries += 1;
            if tries == 3 { Ok(tries) } else { bail!("try {tries}") }
        };
        assert_eq!(with_pauses(&pauses, &mut third).expect("the third"), 3);
        assert_eq!(with_pauses(&pauses, &mut third).expect_err("no more tries").to_string(), "try 6");
    }
}
