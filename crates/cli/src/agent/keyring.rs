//! What the servers' root keys are encrypted under: keys from a file, or from a command that asks a KMS.

use std::{
    fs,
    io::Read as _,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use server::{ServerConfig, keyring::Wrapping, shared::SharedKey};
use zeroize::Zeroizing;

/// Most of what a command may print, and a file hold: a key is 44 bytes.
const LONGEST: u64 = 64 * 1024;

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// A file that holds it.
    File(PathBuf),
    /// A command that prints it.
    Command {
        /// The program and its arguments; there is no shell.
        argv: Vec<String>,
        /// How long it may take.
        timeout: Duration,
    },
}

/// The `keyring` blocks of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySources {
    /// Encrypts what is written.
    pub(crate) active: Option<KeySource>,
    /// Open what was written before.
    pub(crate) others: Vec<KeySource>,
}

/// Reads the keys that the `keyring` blocks name, and gives them to the server. `shares`: it shares its store. Waits
/// for files and commands: a server without its keys has nothing to do.
///
/// # Errors
/// When one of them gives no key. Neither error nor log repeats what was read.
pub(crate) fn unlock(server: &mut ServerConfig, sources: &KeySources, shares: bool) -> Result<()> {
    server.wrapping = Wrapping {
        active: sources.active.as_ref().map(key_of).transpose()?,
        others: sources.others.iter().map(key_of).collect::<Result<_>>()?,
    };
    if shares && server.shared.is_none() {
        server.shared.clone_from(&server.wrapping.active);
    }
    Ok(())
}

fn key_of(source: &KeySource) -> Result<SharedKey> {
    let (text, what) = match source {
        KeySource::File(path) => (read(path)?, format!("the file {} of keyring \"file\"", path.display())),
        KeySource::Command { argv, timeout } => {
            (print(argv, *timeout)?, format!("what {} of keyring \"command\" has printed", argv[0]))
        }
    };
    let text = std::str::from_utf8(&text).ok().with_context(|| format!("{what} is not text"))?;
    SharedKey::read(text).map_err(|error| anyhow::anyhow!("{what} {error}"))
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let what = || format!("could not read the key of keyring \"file\" from {}", path.display());
    let file = fs::File::open(path).with_context(what)?;
    let mode = file.metadata().with_context(what)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), mode = format_args!("{mode:o}"), "others have rights to the key that \
            root keys are encrypted under; take them away with chmod 600");
    }
    bounded(file).with_context(what)
}

fn bounded(from: impl std::io::Read) -> std::io::Result<Zeroizing<Vec<u8>>> {
    // It does not grow: what a buffer was before stays in memory.
    let mut text = Zeroizing::new(Vec::with_capacity(LONGEST as usize + 1));
    from.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

/// What a command prints. It gets the agent's environment and nothing to read; what it writes to standard error is
/// in the reason when it fails. When its time is over it is killed with all that it has started.
fn print(argv: &[String], timeout: Duration) -> Result<Zeroizing<Vec<u8>>> {
    let name = &argv[0];
    let mut child = Command::new(name)
        .args(&argv[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("could not start {name}, the command of keyring \"command\""))?;
    let (tell, told) = mpsc::channel();
    let (out, complaints) = (child.stdout.take(), child.stderr.take());
    let also = tell.clone();
    thread::spawn(move || also.send((true, out.map(bounded).transpose())));
    thread::spawn(move || tell.send((false, complaints.map(bounded).transpose())));
    let until = std::time::Instant::now() + timeout;
    let (mut printed, mut complained) = (Zeroizing::default(), Zeroizing::default());
    for _ in 0..2 {
        let left = until.saturating_duration_since(std::time::Instant::now());
        match told.recv_timeout(left) {
            Ok((true, text)) => printed = text.context("could not read what it prints")?.unwrap_or_default(),
            Ok((false, text)) => complained = text.unwrap_or_default().unwrap_or_default(),
            Err(_) => {
                end(&mut child);
                bail!("{name}, the command of keyring \"command\", gave no key within {timeout:?} and was killed");
            }
        }
    }
    // Both its outputs are closed: it is over, or has nothing more to say.
    let status = wait(&mut child, until)?;
    ensure!(
        status.is_some_and(|status| status.success()),
        "{name}, the command of keyring \"command\", {}: {}",
        status.map_or_else(|| "did not end and was killed".to_owned(), |status| format!("failed ({status})")),
        String::from_utf8_lossy(&complained).trim()
    );
    Ok(printed)
}

fn wait(child: &mut Child, until: std::time::Instant) -> Result<Option<std::process::ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if std::time::Instant::now() >= until {
            end(child);
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It is gone where there is none.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, timeout: Duration) -> Result<SharedKey> {
        key_of(&KeySource::Command { argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), timeout })
    }

    #[test]
    fn a_command_prints_a_key_or_its_failure_is_told() {
        let long = Duration::from_secs(30);
        run("echo AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", long).expect("a key");
        for (script, part) in [
            ("echo secret", "of keyring \"command\" has printed must be a key in base64"),
            ("echo c2VjcmV0", "it is 6 bytes"),
            ("echo no credentials >&2; exit 3", "failed (exit status: 3): no credentials"),
            ("kill -9 $$", "failed (signal: 9"),
        ] {
            let error = format!("{:#}", run(script, long).expect_err(script));
            assert!(error.contains(part) && !error.contains("c2VjcmV0"), "{script}: {error}");
        }
        let none = KeySource::Command { argv: vec!["/no/such/program".to_owned()], timeout: long };
        assert!(format!("{:#}", key_of(&none).expect_err("no program")).contains("could not start /no/such/program"));
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed_with_all_that_it_has_started() {
        let dir = tempfile::tempdir().expect("a directory");
        let pid = dir.path().join("pid");
        let script = format!("sleep 71011 & echo $! > {}; wait", pid.display());
        let mut timeout = Duration::from_millis(700);
        let below: i32 = loop {
            let error = run(&script, timeout).expect_err("too long").to_string();
            assert!(error.contains(&format!("gave no key within {timeout:?} and was killed")), "{error}");
            // On a slow machine it is killed before it has started anything.
            match fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse().ok()) {
                Some(below) => break below,
                None => assert!(timeout < Duration::from_secs(30), "it starts nothing within {timeout:?}"),
            }
            timeout *= 4;
        };
        let proc = PathBuf::from(format!("/proc/{below}/stat"));
        let gone = || fs::read_to_string(&proc).map_or(true, |stat| stat.contains(") Z "));
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !gone() {
            assert!(std::time::Instant::now() < until, "the process that the command has started goes on");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_file_holds_a_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let error = format!("{:#}", key_of(&KeySource::File(path.clone())).expect_err("no file"));
        assert!(error.contains("could not read the key of keyring \"file\" from"), "{error}");
        fs::write(&path, SharedKey::generate().expect("a key") + "\n").expect("writes");
        key_of(&KeySource::File(path)).expect("a key");
    }
}
