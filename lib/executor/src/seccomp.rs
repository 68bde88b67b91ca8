//! The default system call filter of isolated workloads.
//!
//! It refuses calls that reach beyond a task: mounts, namespaces, modules, clocks, and parts of the kernel with a
//! history of vulnerabilities that services do not need. A capability of the task brings its calls back. The filter is
//! a binary search over ranges of call numbers. So it is small, and the kernel recognises most calls as always allowed.

use std::ops::Range;

use libc::c_long;

use crate::capabilities::bit;

/// Later calls are unknown here and get the answer of a kernel without them.
const KNOWN_BEFORE: u32 = 463;
/// On x86-64, numbers from here on belong to the x32 calling convention.
const OTHER_CONVENTION: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Refused without the named capability; with an empty name, always.
const REFUSED: &[(c_long, &str)] = &[
    (libc::SYS_acct, "sys_pacct"),
    (libc::SYS_add_key, ""),
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_chroot, "sys_chroot"),
    (libc::SYS_clock_adjtime, "sys_time"),
    (libc::SYS_clock_settime, "sys_time"),
    (libc::SYS_delete_module, "sys_module"),
    (libc::SYS_fanotify_init, "sys_admin"),
    (libc::SYS_finit_module, "sys_module"),
    (libc::SYS_fsconfig, "sys_admin"),
    (libc::SYS_fsmount, "sys_admin"),
    (libc::SYS_fsopen, "sys_admin"),
    (libc::SYS_fspick, "sys_admin"),
    (libc::SYS_get_mempolicy, "sys_nice"),
    (libc::SYS_init_module, "sys_module"),
    (libc::SYS_io_uring_enter, ""),
    (libc::SYS_io_uring_register, ""),
    (libc::SYS_io_uring_setup, ""),
    (libc::SYS_kcmp, "sys_ptrace"),
    (libc::SYS_kexec_file_load, "sys_boot"),
    (libc::SYS_kexec_load, "sys_boot"),
    (libc::SYS_keyctl, ""),
    (libc::SYS_mbind, "sys_nice"),
    (libc::SYS_mount, "sys_admin"),
    (libc::SYS_mount_setattr, "sys_admin"),
    (libc::SYS_move_mount, "sys_admin"),
    (libc::SYS_move_pages, "sys_nice"),
    (libc::SYS_nfsservctl, ""),
    (libc::SYS_open_by_handle_at, "dac_read_search"),
    (libc::SYS_open_tree, "sys_admin"),
    (libc::SYS_perf_event_open, "perfmon"),
    (libc::SYS_pidfd_getfd, "sys_ptrace"),
    (libc::SYS_pivot_root, "sys_admin"),
    (libc::SYS_process_madvise, "sys_ptrace"),
    (libc::SYS_quotactl, "sys_admin"),
    (libc::SYS_quotactl_fd, "sys_admin"),
    (libc::SYS_reboot, "sys_boot"),
    (libc::SYS_request_key, ""),
    (libc::SYS_set_mempolicy, "sys_nice"),
    (libc::SYS_setdomainname, "sys_admin"),
    (libc::SYS_sethostname, "sys_admin"),
    (libc::SYS_setns, "sys_admin"),
    (libc::SYS_settimeofday, "sys_time"),
    (libc::SYS_swapoff, "sys_admin"),
    (libc::SYS_swapon, "sys_admin"),
    (libc::SYS_syslog, "syslog"),
    (libc::SYS_umount2, "sys_admin"),
    (libc::SYS_unshare, "sys_admin"),
    (libc::SYS_userfaultfd, "sys_ptrace"),
    (libc::SYS_vhangup, "sys_tty_config"),
];

/// Calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[(c_long, &str)] = &[
    (libc::SYS__sysctl, ""),
    (libc::SYS_ioperm, "sys_rawio"),
    (libc::SYS_iopl, "sys_rawio"),
    (libc::SYS_lookup_dcookie, ""),
    (libc::SYS_sysfs, ""),
    (libc::SYS_uselib, ""),
    (libc::SYS_ustat, ""),
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[(c_long, &str)] = &[];

/// Flags of clone(2) that make namespaces: mounts, cgroups, uts, ipc, users, pids, network.
const NAMESPACE_FLAGS: u32 = 0x7E02_0000;
/// Address families that lead out of the task: hypervisor sockets (`AF_VSOCK`), the kernel's crypto (`AF_ALG`).
const FAMILIES: [u32; 2] = [40, 38];
/// Personalities that change only reported names.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF];

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7FFF_0000;
const ERROR: u32 = 0x0005_0000;
const NOT_PERMITTED: u32 = ERROR | libc::EPERM as u32;
const NO_SUCH_CALL: u32 = ERROR | libc::ENOSYS as u32;
/// Offsets in `seccomp_data`: the number, the architecture, the low half of the first argument.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    value: u32,
}

/// The filter's verdict on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Return(u32),
    /// Refused when the first argument has any of these bits.
    UnlessBits(u32),
    /// Refused when the first argument is one of these.
    UnlessOneOf(&'static [u32]),
    /// Refused when it is none of these.
    OnlyOneOf(&'static [u32]),
}

/// The filter for tasks with `capabilities`, as the bytes of a `sock_filter` array.
pub fn default_filter(capabilities: u64) -> Vec<u8> {
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCH),
        instruction(JUMP_EQUAL, 1, 0, ARCHITECTURE),
        instruction(RETURN, 0, 0, NO_SUCH_CALL),
        instruction(LOAD, 0, 0, NUMBER),
    ];
    search(&ranges(capabilities), &mut program);
    program
        .iter()
        .flat_map(|i| {
            let (code, value) = (i.code.to_ne_bytes(), i.value.to_ne_bytes());
            [code[0], code[1], i.jump_true, i.jump_false, value[0], value[1], value[2], value[3]]
        })
        .collect()
}

const fn instruction(code: u16, jump_true: u8, jump_false: u8, value: u32) -> Instruction {
    Instruction { code, jump_true, jump_false, value }
}

/// Every number with its verdict; neighbours with the same one form a range.
fn ranges(capabilities: u64) -> Vec<(Range<u32>, Verdict)> {
    let holds = |name: &str| bit(name).is_some_and(|bit| capabilities & bit != 0);
    let verdict = |number: u32| {
        let is = |call: c_long| u32::try_from(call) == Ok(number);
        let refused = REFUSED.iter().chain(REFUSED_HERE).find(|(call, _)| is(*call));
        match refused {
            _ if number >= OTHER_CONVENTION || number >= KNOWN_BEFORE => Verdict::Return(NO_SUCH_CALL),
            Some((_, needs)) if !holds(needs) => Verdict::Return(NOT_PERMITTED),
            Some(_) => Verdict::Return(ALLOW),
            // Its flags lie in memory, which a filter cannot read; programs fall back to clone.
            None if is(libc::SYS_clone3) && !holds("sys_admin") => Verdict::Return(NO_SUCH_CALL),
            None if is(libc::SYS_clone) && !holds("sys_admin") => Verdict::UnlessBits(NAMESPACE_FLAGS),
            None if is(libc::SYS_socket) => Verdict::UnlessOneOf(&FAMILIES),
            None if is(libc::SYS_personality) => Verdict::OnlyOneOf(&PERSONALITIES),
            None => Verdict::Return(ALLOW),
        }
    };
    let mut ranges: Vec<(Range<u32>, Verdict)> = Vec::new();
    for number in 0..=KNOWN_BEFORE {
        let verdict = verdict(number);
        match ranges.last_mut() {
            Some((range, last)) if *last == verdict => range.end = number + 1,
            _ => ranges.push((number..number + 1, verdict)),
        }
    }
    ranges
}

/// Appends a binary search for the number in the accumulator.
fn search(ranges: &[(Range<u32>, Verdict)], program: &mut Vec<Instruction>) {
    if let [(_, verdict)] = ranges {
        return apply(verdict, program);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let Some((first, _)) = high.first() else {
        return;
    };
    // The low half follows directly; if it is too long for a conditional jump, a separate instruction leads to the high
    // half.
    let at = program.len();
    program.push(instruction(JUMP_AT_LEAST, 0, 0, first.start));
    program.push(instruction(JUMP_ALWAYS, 0, 0, 0));
    search(low, program);
    let distance = program.len() - at - 2;
    program[at].jump_false = 1;
    program[at + 1].value = distance as u32;
    search(high, program);
}

const JUMP_ALWAYS: u16 = 0x05;

fn apply(verdict: &Verdict, program: &mut Vec<Instruction>) {
    let load = instruction(LOAD, 0, 0, FIRST_ARGUMENT);
    let refuse = instruction(RETURN, 0, 0, NOT_PERMITTED);
    let allow = instruction(RETURN, 0, 0, ALLOW);
    let one_of = |values: &[u32]| {
        let last = values.len() as u8;
        // Each hit jumps over the rest of the list and over the code for no hit.
        let test = |(n, value): (usize, &u32)| instruction(JUMP_EQUAL, last - n as u8, 0, *value);
        values.iter().enumerate().map(test).collect::<Vec<_>>()
    };
    match verdict {
        Verdict::Return(value) => program.push(instruction(RETURN, 0, 0, *value)),
        Verdict::UnlessBits(bits) => program.extend([load, instruction(JUMP_ANY_BIT, 0, 1, *bits), refuse, allow]),
        Verdict::UnlessOneOf(values) => {
            program.push(load);
            program.extend(one_of(values));
            program.extend([allow, refuse]);
        }
        Verdict::OnlyOneOf(values) => {
            program.push(load);
            program.extend(one_of(values));
            program.extend([refuse, allow]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities;

    /// Interprets the filter like the kernel.
    fn run(filter: &[u8], arch: u32, number: u32, argument: u32) -> u32 {
        let program: Vec<Instruction> = filter
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| {
                instruction(u16::from_ne_bytes([b[0], b[1]]), b[2], b[3], u32::from_ne_bytes([b[4], b[5], b[6], b[7]]))
            })
            .collect();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let i = program[at];
            at += 1;
            let jump = |hit: bool| usize::from(if hit { i.jump_true } else { i.jump_false });
            match i.code {
                LOAD => accumulator = [number, arch, 0, 0, argument][i.value as usize / 4],
                JUMP_EQUAL => at += jump(accumulator == i.value),
                JUMP_AT_LEAST => at += jump(accumulator >= i.value),
                JUMP_ANY_BIT => at += jump(accumulator & i.value != 0),
                JUMP_ALWAYS => at += i.value as usize,
                RETURN => return i.value,
                other => panic!("instruction {other}"),
            }
        }
    }

    #[test]
    fn verdicts() {
        let usual = capabilities::set(capabilities::DEFAULT).unwrap();
        let default = default_filter(usual);
        let call = |filter: &[u8], number: c_long, argument| run(filter, ARCHITECTURE, number as u32, argument);
        for allowed in
            [libc::SYS_read, libc::SYS_execve, libc::SYS_setresuid, libc::SYS_capset, libc::SYS_prctl, libc::SYS_chroot]
        {
            assert_eq!(call(&default, allowed, 0), ALLOW, "{allowed}");
        }
        for refused in [libc::SYS_mount, libc::SYS_unshare, libc::SYS_bpf, libc::SYS_keyctl, libc::SYS_reboot] {
            assert_eq!(call(&default, refused, 0), NOT_PERMITTED, "{refused}");
        }
        assert_eq!(call(&default, libc::SYS_clone, 0x1200_0011 & !NAMESPACE_FLAGS), ALLOW);
        assert_eq!(call(&default, libc::SYS_clone, 0x1000_0000), NOT_PERMITTED);
        assert_eq!(call(&default, libc::SYS_clone3, 0), NO_SUCH_CALL);
        assert_eq!((call(&default, libc::SYS_socket, 2), call(&default, libc::SYS_socket, 38)), (ALLOW, NOT_PERMITTED));
        assert_eq!(
            (call(&default, libc::SYS_personality, 8), call(&default, libc::SYS_personality, 9)),
            (ALLOW, NOT_PERMITTED)
        );
        for unknown in [KNOWN_BEFORE, 9999, OTHER_CONVENTION, OTHER_CONVENTION + 1, u32::MAX] {
            assert_eq!(run(&default, ARCHITECTURE, unknown, 0), NO_SUCH_CALL, "{unknown}");
        }
        assert_eq!(run(&default, 0x4000_0003, 1, 0), NO_SUCH_CALL, "another architecture");
        let admin = default_filter(usual | bit("sys_admin").unwrap());
        for back in [libc::SYS_mount, libc::SYS_unshare, libc::SYS_clone3] {
            assert_eq!(call(&admin, back, 0), ALLOW, "{back}");
        }
        assert_eq!(call(&admin, libc::SYS_keyctl, 0), NOT_PERMITTED);
    }

    #[test]
    fn every_number_has_its_verdict() {
        let filter = default_filter(0);
        assert!(filter.len() / 8 < 1000);
        for (range, verdict) in ranges(0) {
            if let Verdict::Return(value) = verdict {
                for number in range {
                    assert_eq!(run(&filter, ARCHITECTURE, number, 0), value, "{number}");
                }
            }
        }
    }
}
