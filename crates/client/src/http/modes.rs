//! File modes as Go's `os.FileMode` prints them: clients parse that text.

/// `drwxr-xr-x`, `-rw-r--r--`, `dtrwxrwxrwx`, `Lrwxrwxrwx`.
pub(crate) fn go_mode(mode: u32) -> String {
    let mut out = String::new();
    match mode & 0o170_000 {
        0o040_000 => out.push('d'),
        0o120_000 => out.push('L'),
        0o060_000 => out.push('D'),
        0o010_000 => out.push('p'),
        0o140_000 => out.push('S'),
        0o020_000 => out.push_str("Dc"),
        _ => {}
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if mode & bit != 0 {
            out.push(letter);
        }
    }
    if out.is_empty() {
        out.push('-');
    }
    for (n, letter) in "rwxrwxrwx".chars().enumerate() {
        out.push(if mode & (1 << (8 - n)) != 0 { letter } else { '-' });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::go_mode;

    #[test]
    fn modes_as_go_prints_them() {
        for (mode, expected) in [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o010_600, "prw-------"),
            (0o104_755, "urwxr-xr-x"),
            (0o020_620, "Dcrw--w----"),
        ] {
            assert_eq!(go_mode(mode), expected, "{mode:o}");
        }
    }
}
