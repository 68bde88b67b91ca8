//! What the fetching process may touch: its kernel keeps it to the directories that it needs, where it can.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use serde::{Deserialize, Serialize};

/// A further path for the fetching process: `KIND:MODE:PATH`, kind `d` or `f`, mode of the letters r, w, x, c.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraPath {
    /// A directory with everything below.
    pub directory: bool,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// Programs in it may be run.
    pub execute: bool,
    /// Entries may be made and removed.
    pub create: bool,
    /// Absolute.
    pub path: PathBuf,
}

impl ExtraPath {
    /// As the operator writes it.
    ///
    /// # Errors
    /// How it must be written.
    pub fn parse(text: &str) -> Result<Self, String> {
        let how = || {
            format!(
                "{text:?} must be written KIND:MODE:/PATH, with kind d or f and a mode of r, w, x and c, such as \
                    d:r:/srv/artifacts"
            )
        };
        let mut parts = text.splitn(3, ':');
        let (Some(kind), Some(mode), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(how());
        };
        if !matches!(kind, "d" | "f")
            || mode.is_empty()
            || !mode.chars().all(|c| "rwxc".contains(c))
            || !path.starts_with('/')
        {
            return Err(how());
        }
        let has = |letter| mode.contains(letter);
        Ok(Self {
            directory: kind == "d",
            read: has('r'),
            write: has('w'),
            execute: has('x'),
            create: has('c'),
            path: path.into(),
        })
    }
}

/// The lowest version that lets files be moved between directories.
const WANTED: ABI = ABI::V3;

/// Programs and libraries.
const RUN: [&str; 8] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/opt", "/nix/store"];

/// What programs that use the network read.
const READ: [&str; 29] = [
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/gitconfig",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssh",
    "/etc/ssl",
    "/proc",
    "/run/systemd/resolve",
    "/var/lib/ca-certificates",
];

/// Confines this thread and all that it starts from now on to what a fetch needs. Answers why not, when the kernel
/// cannot.
pub(crate) fn confine(root: &Path, home: Option<&Path>, extra: &[ExtraPath]) -> Option<String> {
    match rules(root, home, extra) {
        Ok(RulesetStatus::FullyEnforced) => None,
        Ok(RulesetStatus::PartiallyEnforced) => {
            Some("the kernel's Landlock is too old to confine the fetch to its directories in every respect".into())
        }
        Ok(RulesetStatus::NotEnforced) => {
            Some("the kernel has no Landlock to confine the fetch to its directories".into())
        }
        Err(error) => Some(format!("the fetch could not be confined to its directories: {error}")),
    }
}

fn rules(root: &Path, home: Option<&Path>, extra: &[ExtraPath]) -> Result<RulesetStatus, landlock::RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::WriteFile | AccessFs::Truncate;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(WANTED))?
        .create()?
        .add_rules(path_beneath_rules([root], AccessFs::from_all(WANTED)))?
        .add_rules(path_beneath_rules(RUN, read | AccessFs::Execute))?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(["/dev/null"], read | write))?;
    if let Some(home) = home {
        rules = rules.add_rules(path_beneath_rules([home.join(".ssh"), home.join(".gitconfig")], read))?;
    }
    for extra in extra {
        let mut access = BitFlags::<AccessFs>::EMPTY;
        for (given, flags) in [
            (extra.read, read),
            (extra.write, write),
            (extra.execute, AccessFs::Execute | AccessFs::ReadFile),
            (extra.create, AccessFs::from_all(WANTED) & !(read | write | AccessFs::Execute)),
        ] {
            if given {
                access |= flags;
            }
        }
        rules = rules.add_rules(path_beneath_rules([&extra.path], access))?;
    }
    rules.restrict_self().map(|status| status.ruleset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_thread_reaches_its_own_directories_only() {
        let temp = tempfile::tempdir().expect("temp dir");
        let [root, offered, outside] = ["root", "offered", "outside"].map(|name| temp.path().join(name));
        for dir in [&root, &offered, &outside] {
            std::fs::create_dir_all(dir.join("d")).expect("dir");
            std::fs::write(dir.join("f"), "text").expect("file");
        }
        let extra = vec![ExtraPath::parse(&format!("d:r:{}", offered.display())).expect("a path")];
        // The restriction is for a thread and what it starts.
        let thread = std::thread::spawn(move || {
            let why_not = confine(&root, None, &extra);
            let inside = std::fs::write(root.join("new"), "x")
                .and_then(|()| std::fs::rename(root.join("new"), root.join("d/new")));
            let offered = (std::fs::read(offered.join("f")).is_ok(), std::fs::write(offered.join("new"), "x").is_ok());
            let outside = (std::fs::read(outside.join("f")).is_ok(), std::fs::write(outside.join("new"), "x").is_ok());
            (why_not, inside.is_ok(), offered, outside)
        });
        let (why_not, inside, offered, outside) = thread.join().expect("no panic");
        match why_not {
            None => assert_eq!((inside, offered, outside), (true, (true, false), (false, false))),
            Some(why) => assert!(why.contains("Landlock"), "{why}"),
        }
    }

    #[test]
    fn extra_paths_as_operators_write_them() {
        let path = ExtraPath::parse("d:rx:/opt/a:b").expect("fine");
        assert!(path.directory && path.read && path.execute && !path.write && !path.create);
        assert_eq!(path.path, Path::new("/opt/a:b"));
        for wrong in ["", "d:r", "x:r:/a", "d::/a", "d:rq:/a", "f:r:a"] {
            assert!(ExtraPath::parse(wrong).is_err(), "{wrong}");
        }
    }
}
