//! Reads `/proc`: processes, their parents, their resource use.

use std::{collections::BTreeSet, io};

/// Most looks for one list of descendants, if processes die in each of them.
const LOOKS: usize = 64;

/// The relevant fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Its pid.
    pub pid: i32,
    /// One-letter state; `Z` has ended and waits for its parent.
    pub state: char,
    /// Pid of its parent.
    pub ppid: i32,
    /// Its session.
    pub session: i32,
    /// CPU time in user mode, in clock ticks.
    pub user_ticks: u64,
    /// CPU time in system mode, in clock ticks.
    pub system_ticks: u64,
    /// User time of the children that it has reaped, in clock ticks.
    pub children_user_ticks: u64,
    /// System time of the children that it has reaped, in clock ticks.
    pub children_system_ticks: u64,
    /// Start time, in clock ticks since boot: with the pid, its identity.
    pub start: u64,
    /// Resident pages.
    pub rss_pages: u64,
}

impl ProcessStat {
    /// The status of process `pid`; `None` when there is none.
    pub fn of(pid: i32) -> Option<ProcessStat> {
        ProcessStat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<ProcessStat> {
        // The name in parentheses may contain blanks and parentheses.
        let (pid, rest) = text.split_once(" (")?;
        let fields: Vec<&str> = rest.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
        Some(ProcessStat {
            pid: pid.parse().ok()?,
            state: fields.first()?.chars().next()?,
            ppid: fields.get(1)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            user_ticks: number(11)?,
            system_ticks: number(12)?,
            children_user_ticks: number(13)?,
            children_system_ticks: number(14)?,
            start: number(19)?,
            rss_pages: number(21)?,
        })
    }

    /// Whether it still runs, or could: a zombie holds nothing but its number.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// Every process of the machine. Processes that begin or end meanwhile may be missing.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn all() -> io::Result<Vec<ProcessStat>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(pid.and_then(ProcessStat::of));
    }
    Ok(found)
}

/// Live descendants of `root`, without itself. The cost depends on their number only, if the kernel lists children.
/// Processes that begin meanwhile may be missing. If `root` adopts the orphans below it and the kernel lists
/// children, an empty list is certain: nothing runs there.
pub fn descendants_of(root: i32) -> Vec<ProcessStat> {
    // Without lists of the kernel, all processes are looked through.
    settled(root, children, ProcessStat::of).unwrap_or_else(|| descendants(root, &all().unwrap_or_default()))
}

/// Looks until no process has died during a look. One that dies hands its children to an ancestor, whose list may have
/// been read before: they would be in neither.
fn settled(
    root: i32,
    mut children: impl FnMut(i32) -> Option<Vec<i32>>,
    mut stat: impl FnMut(i32) -> Option<ProcessStat>,
) -> Option<Vec<ProcessStat>> {
    let mut dead = BTreeSet::new();
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        found.clear();
        let known = dead.len();
        let Some(mut unread) = children(root) else {
            return stat(root).is_none().then_some(found);
        };
        while let Some(process) = unread.pop() {
            // Its children first: those of one that lives afterwards were all in its list.
            unread.extend(children(process).unwrap_or_default());
            match stat(process).filter(ProcessStat::is_alive) {
                Some(living) => found.push(living),
                None => drop(dead.insert(process)),
            }
        }
        if dead.len() == known {
            break;
        }
    }
    Some(found)
}

/// Children of all threads of a process; `None` when the kernel has no list, or the process has gone.
fn children(parent: i32) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    'look: for _ in 0..LOOKS {
        found.clear();
        for thread in std::fs::read_dir(format!("/proc/{parent}/task")).ok()? {
            let thread = thread.ok()?.path();
            match std::fs::read_to_string(thread.join("children")) {
                Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
                // A thread that ends hands its children to another one.
                Err(_) if !thread.exists() => continue 'look,
                Err(_) => return None,
            }
        }
        break;
    }
    Some(found)
}

/// Live descendants of `root` among `all`, itself not included.
pub fn descendants(root: i32, all: &[ProcessStat]) -> Vec<ProcessStat> {
    let mut found: Vec<ProcessStat> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in all.iter().filter(|p| p.ppid == parent && p.pid != root) {
            parents.push(child.pid);
            if child.is_alive() {
                found.push(*child);
            }
        }
    }
    found
}

/// Live processes whose initial environment held `entry` (`NAME=value`), and whether there are some that cannot say:
/// while the kernel executes a program in a process or takes a process apart, it has no environment.
pub fn with_environment(entry: &[u8], all: &[ProcessStat]) -> (Vec<ProcessStat>, bool) {
    let (mut found, mut undecided) = (Vec::new(), false);
    for process in all.iter().filter(|p| p.is_alive()) {
        // Others are not ours to look into.
        let Some(environment) = environment(process.pid) else { continue };
        if environment.split(|b| *b == 0).any(|e| e == entry) {
            found.push(*process);
        } else if environment.is_empty() && !has_none(process.pid) {
            undecided = true;
        }
    }
    (found, undecided)
}

fn environment(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/environ")).ok()
}

/// Whether a process without an environment is a kernel thread, has an empty one, or has gone.
fn has_none(pid: i32) -> bool {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return true };
    let fields: Vec<u64> = rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
    match (fields.get(6), fields.get(47), fields.get(48)) {
        (Some(flags), _, _) if flags & KERNEL_THREAD != 0 => true,
        // The kernel sets the end last.
        (_, Some(begin), Some(end)) => *begin != 0 && begin == end && environment(pid).is_none_or(|e| e.is_empty()),
        // Kernels before 3.5 do not tell.
        _ => true,
    }
}

/// Id of the machine's present boot.
///
/// # Errors
/// When the kernel does not tell.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Nanoseconds in one clock tick.
pub fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Unix time in nanoseconds.
pub fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn names_with_parentheses_do_not_shift_fields() {
        let line = "42 (a) S (b) R 7 42 40 0 -1 4194560 1 2 3 4 11 12 13 14 20 0 1 0 999 1000 77 18446744073709551615";
        let stat = ProcessStat::parse(line).unwrap();
        assert_eq!((stat.pid, stat.state, stat.ppid, stat.session), (42, 'R', 7, 40));
        assert_eq!((stat.user_ticks, stat.system_ticks, stat.start, stat.rss_pages), (11, 12, 999, 77));
        assert_eq!((stat.children_user_ticks, stat.children_system_ticks), (13, 14));
        assert_eq!(ProcessStat::parse("42 (a) S 1"), None);
    }

    #[test]
    fn finds_this_process() {
        let me = std::process::id() as i32;
        let all = all().unwrap();
        let stat = all.iter().find(|p| p.pid == me).unwrap();
        assert!(descendants(stat.ppid, &all).iter().any(|p| p.pid == me));
        assert!(!descendants(me, &all).iter().any(|p| p.pid == me));
    }

    #[test]
    fn processes_are_known_by_their_environment() {
        let sleep = |entries: &[(&str, &str)]| {
            let mut command = std::process::Command::new("/bin/sleep");
            command.arg("600").env_clear().envs(entries.iter().copied()).spawn().unwrap()
        };
        let (mut marked, mut bare) = (sleep(&[("A", "b"), ("MARK", "x")]), sleep(&[]));
        let (with, without) = (marked.id() as i32, bare.id() as i32);
        let begun = std::time::Instant::now();
        let seen = loop {
            let both: Vec<ProcessStat> = [with, without].into_iter().filter_map(ProcessStat::of).collect();
            let (found, undecided) = with_environment(b"MARK=x", &both);
            let found: Vec<i32> = found.iter().map(|p| p.pid).collect();
            // Until both have executed their program.
            if (found == [with] && !undecided) || begun.elapsed().as_secs() > 60 {
                break (found, undecided);
            }
        };
        for child in [&mut marked, &mut bare] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(seen, (vec![with], false));
        let this = ProcessStat::of(std::process::id() as i32).unwrap();
        assert_eq!(with_environment(b"MARK=x", &[this]), (Vec::new(), false));
    }

    #[test]
    fn an_orphan_that_is_handed_on_during_a_look_is_not_missed() {
        const ROOT: i32 = 1;
        const SHELL: i32 = 2;
        const ORPHAN: i32 = 3;
        let process = |pid, state| ProcessStat::parse(&format!("{pid} (x) {state} 1 1 1 {}", "0 ".repeat(20)));
        // The shell dies once the list of the root has been read, and stays as a zombie.
        let looks = Cell::new(0);
        let children = |of| match of {
            ROOT => {
                looks.set(looks.get() + 1);
                Some(if looks.get() == 1 { vec![SHELL] } else { vec![SHELL, ORPHAN] })
            }
            _ => Some(Vec::new()),
        };
        let stat = |pid| process(pid, if pid == SHELL { 'Z' } else { 'S' });
        let found = settled(ROOT, children, stat).unwrap();
        assert_eq!(found.iter().map(|p| p.pid).collect::<Vec<_>>(), [ORPHAN]);
        assert_eq!(looks.get(), 2, "one that was dead before hands nothing on");

        // Some die in each look: what was found last counts.
        let next = Cell::new(10);
        let dying = |of| match of {
            ROOT => {
                next.set(next.get() + 1);
                Some(vec![next.get(), ORPHAN])
            }
            _ => None,
        };
        let found = settled(ROOT, dying, |pid| (pid == ORPHAN).then(|| process(pid, 'S')).flatten()).unwrap();
        assert_eq!(found.len(), 1);
        // A kernel without lists, and a process that has gone.
        assert_eq!(settled(ROOT, |_| None, |pid| process(pid, 'S')), None);
        assert_eq!(settled(ROOT, |_| None, |_| None), Some(Vec::new()));
    }

    #[test]
    fn descendants_are_found_over_generations_both_ways() {
        let mut shell = std::process::Command::new("/bin/sh")
            .args(["-c", "/bin/sh -c 'echo $$; read wait; exit 0'; exit 0"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let (me, inner) = (std::process::id() as i32, line.trim().parse::<i32>().unwrap());
        let pids = |found: Vec<ProcessStat>| found.iter().map(|p| p.pid).collect::<Vec<_>>();
        for found in [pids(descendants_of(me)), pids(descendants(me, &all().unwrap()))] {
            assert!(
                found.contains(&inner) && found.contains(&(shell.id() as i32)) && !found.contains(&me),
                "{found:?}"
            );
        }
        assert_eq!(pids(descendants_of(shell.id() as i32)), [inner]);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(descendants_of(shell.id() as i32).is_empty(), "it has gone");
    }
}
