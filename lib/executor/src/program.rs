//! Resolves names of a job on this host: programs and users. The executor itself gets paths and numbers.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use executor_proto::User;

use crate::error::Error;

/// Finds `command` as tasks expect: in `<task dir>/local`, in the task directory, as an absolute path, then along
/// `search_path` (a `PATH`). Makes it executable if it lies in the task directory: downloads lack that bit.
///
/// # Errors
/// [`Error::Exec`] when there is no such program, with the places that were searched; [`Error::Io`] when it cannot be
/// made executable.
pub fn find_program(task_dir: &Path, command: &str, search_path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let relative = command.trim_start_matches('/');
    let is_file = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.is_file());
    let inside = [task_dir.join("local").join(relative), task_dir.join(relative)];
    if let Some(path) = inside.into_iter().find(is_file) {
        let seen = std::fs::metadata(&path).map_err(Error::io("look at the program", &path))?;
        if seen.permissions().mode() & 0o111 == 0 {
            // A link of the task may lead to any file of the host.
            make_executable(task_dir, command)?;
        }
        return Ok(path);
    }
    if Path::new(command).is_absolute() && is_file(&PathBuf::from(command)) {
        return Ok(command.into());
    }
    let executable =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let dirs = search_path.filter(|_| !command.contains('/')).map(|p| std::env::split_paths(p).collect::<Vec<_>>());
    let found =
        dirs.into_iter().flatten().filter(|dir| dir.is_absolute()).map(|dir| dir.join(command)).find(executable);
    found.ok_or_else(|| Error::Exec {
        command: command.into(),
        message: format!(
            "it is not in {}/local, not in {0}, no absolute path of a file{}",
            task_dir.display(),
            match search_path {
                Some(path) if !command.contains('/') => format!(" and not in the PATH {}", path.to_string_lossy()),
                _ => String::new(),
            }
        ),
        errno: rustix::io::Errno::NOENT.raw_os_error(),
    })
}

/// Makes `command` executable in `local` or in the task directory itself, as [`find_program`] does, without leaving
/// that directory. For tasks that see it as their root and may have put links there.
///
/// # Errors
/// When the directory cannot be opened, or the file's mode not changed. A missing program is no error here: its start
/// tells.
pub fn make_executable(task_dir: &Path, command: &str) -> Result<(), Error> {
    use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let root = rustix::fs::open(task_dir, flags, Mode::empty())
        .map_err(|e| Error::io("open the task directory", task_dir)(e.into()))?;
    for path in
        [Path::new("local").join(command.trim_start_matches('/')), PathBuf::from(command.trim_start_matches('/'))]
    {
        // Found, not opened: it may be a device.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat2(&root, &path, flags, Mode::empty(), ResolveFlags::IN_ROOT) else {
            continue;
        };
        let failed = |e: rustix::io::Errno| Error::io("make the program executable", task_dir.join(&path))(e.into());
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode).is_file() {
            if stat.st_mode & 0o111 == 0 {
                let found = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::chmod(found, Mode::from_raw_mode(stat.st_mode | 0o111)).map_err(failed)?;
            }
            return Ok(());
        }
    }
    Ok(())
}

/// Looks a user up by name or number, with its groups. Asks the name services if the files do not have it.
///
/// # Errors
/// [`Error::NoSuchUser`].
pub fn find_user(name: &str) -> Result<User, Error> {
    // To the kernel, this number is no user: it leaves the one that there is, which may be root.
    let known = |user: &User| ![user.uid, user.gid].iter().chain(&user.groups).any(|id| *id == u32::MAX);
    looked_up(name).filter(known).ok_or_else(|| Error::NoSuchUser { name: name.to_owned() })
}

fn looked_up(name: &str) -> Option<User> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    if let Some(user) = user_from(name, &passwd, &groups) {
        return Some(user);
    }
    let entry = ask("getent", &["passwd", name]);
    if let Some(mut user) = user_from(name, &entry, "") {
        let ids = ask("id", &["-G", "--", name]);
        user.groups.extend(ids.split_ascii_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        return Some(user);
    }
    // A bare number needs no account.
    let uid = name.parse().ok()?;
    Some(User { uid, gid: uid, groups: Vec::new() })
}

fn user_from(name: &str, passwd: &str, groups: &str) -> Option<User> {
    let (account, uid, gid) = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (account, uid, gid) = (fields.next()?, fields.nth(1)?, fields.next()?);
        (account == name || uid == name).then_some((account, uid.parse().ok()?, gid.parse().ok()?))
    })?;
    let member_of = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let (gid, members) = (fields.next()?.parse().ok()?, fields.next()?);
        members.split(',').any(|m| m == account).then_some(gid)
    };
    let mut all: Vec<u32> = groups.lines().filter_map(member_of).collect();
    all.push(gid);
    all.sort_unstable();
    all.dedup();
    Some(User { uid, gid, groups: all })
}

/// Output of a tool, empty when it fails.
fn ask(tool: &str, args: &[&str]) -> String {
    match std::process::Command::new(tool).args(args).output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_number_with_their_groups() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\nbroken\n";
        let groups = "root:x:0:\nusers:x:100:\naudio:x:29:bob,ann\nvideo:x:44:anna\n";
        let ann = User { uid: 1000, gid: 100, groups: vec![29, 100] };
        assert_eq!(user_from("ann", passwd, groups), Some(ann.clone()));
        assert_eq!(user_from("1000", passwd, groups), Some(ann));
        assert_eq!(user_from("bob", passwd, groups), None);
    }

    #[test]
    fn unknown_users_are_an_error_unknown_numbers_are_not() {
        for none in ["no-such-user-here", "4294967295", "+4294967295", "04294967295"] {
            assert!(matches!(find_user(none), Err(Error::NoSuchUser { .. })), "{none}");
        }
        assert_eq!(find_user("54321").unwrap().uid, 54321);
    }

    #[test]
    fn programs_are_looked_for_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        let task = dir.path().join("task");
        for d in [&bin, &task.join("local"), &task.join("bin")] {
            std::fs::create_dir_all(d).unwrap();
        }
        let find = |command: &str| find_program(&task, command, Some(bin.as_os_str()));
        let file = |path: &Path, mode: u32| {
            std::fs::write(path, "").unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let error = find("tool").unwrap_err();
        assert!(matches!(error, Error::Exec { errno: 2, .. }), "{error}");
        file(&bin.join("tool"), 0o644);
        assert!(find("tool").is_err(), "not executable and not ours to change");
        file(&bin.join("tool"), 0o755);
        assert_eq!(find("tool").unwrap(), bin.join("tool"));
        assert_eq!(find(bin.join("tool").to_str().unwrap()).unwrap(), bin.join("tool"));
        file(&task.join("tool"), 0o644);
        assert_eq!(find("tool").unwrap(), task.join("tool"));
        assert_eq!(std::fs::metadata(task.join("tool")).unwrap().permissions().mode() & 0o111, 0o111);
        file(&task.join("local/tool"), 0o755);
        assert_eq!(find("tool").unwrap(), task.join("local/tool"));
        file(&task.join("bin/inner"), 0o755);
        assert_eq!(find("/bin/inner").unwrap(), task.join("bin/inner"));
        assert_eq!(find("/bin/sh").unwrap(), Path::new("/bin/sh"));
        assert!(find("local").is_err(), "a directory is no program");
    }

    #[test]
    fn a_link_out_of_the_task_directory_makes_nothing_executable() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (task, outside) = (dir.path().join("task"), dir.path().join("outside"));
        std::fs::create_dir_all(task.join("local")).expect("dir");
        std::fs::write(&outside, "#!/bin/sh\n").expect("file");
        std::fs::write(task.join("local/own"), "#!/bin/sh\n").expect("file");
        std::os::unix::fs::symlink(&outside, task.join("local/run")).expect("link");
        for (command, path) in [("run", &outside), ("own", &task.join("local/own"))] {
            let mode = || std::fs::metadata(path).expect("a file").permissions().mode() & 0o111;
            assert_eq!(mode(), 0);
            find_program(&task, command, None).expect("it is there");
            assert_eq!(mode() == 0, command == "run", "{command}");
        }
    }
}
