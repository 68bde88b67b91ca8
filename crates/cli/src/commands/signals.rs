//! Signals by name and number.

/// Linux's signals, as most processors number them, under the names that nodes know.
const SIGNALS: &[(u32, &str)] = &[
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (17, "SIGCHLD"),
    (18, "SIGCONT"),
    (19, "SIGSTOP"),
    (20, "SIGTSTP"),
    (21, "SIGTTIN"),
    (22, "SIGTTOU"),
    (23, "SIGURG"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (27, "SIGPROF"),
    (28, "SIGWINCH"),
    (29, "SIGIO"),
    (31, "SIGSYS"),
];

/// The name of a signal by its number.
pub(crate) fn name(number: i32) -> Option<&'static str> {
    SIGNALS.iter().find(|(n, _)| i32::try_from(*n) == Ok(number)).map(|(_, name)| *name)
}

/// The name of a signal that was given as `SIGHUP`, `HUP`, `hup` or `1`.
///
/// # Errors
/// When it is none.
pub(crate) fn parse(text: &str) -> Result<&'static str, String> {
    let upper = text.to_ascii_uppercase();
    let wanted = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = match text.parse::<u32>() {
        Ok(number) => SIGNALS.iter().find(|(n, _)| *n == number),
        Err(_) => SIGNALS.iter().find(|(_, name)| name.strip_prefix("SIG") == Some(wanted)),
    };
    found.map(|(_, name)| *name).ok_or_else(|| {
        let near = hcl_lang::nearest(wanted, SIGNALS.iter().filter_map(|(_, n)| n.strip_prefix("SIG")));
        let near = near.map(|n| format!("; did you mean {n}?")).unwrap_or_default();
        format!("no signal has that name or number{near}")
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn signals_have_several_names() {
        for (text, wanted) in [
            ("SIGHUP", "SIGHUP"),
            ("HUP", "SIGHUP"),
            ("hup", "SIGHUP"),
            ("1", "SIGHUP"),
            ("15", "SIGTERM"),
            ("usr1", "SIGUSR1"),
        ] {
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
        assert_eq!(parse("TREM").expect_err("none"), "no signal has that name or number; did you mean TERM?");
        assert!(parse("0").is_err() && parse("99").is_err() && parse("").is_err());
    }
}
