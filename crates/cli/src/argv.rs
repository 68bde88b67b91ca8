//! Nomad's flags have one dash (`-json`, `-var=k=v`); clap's long flags have two. One dash is rewritten to two, so that muscle memory and scripts work.

/// Flags of `alloc exec` whose value is the next argument.
const EXEC_VALUES: &[&str] = &["-e", "-task", "-address", "-region", "-namespace", "-token"];

/// Rewrites every `-name` (two letters or more) into `--name`, up to a bare `--`. Negative numbers and single letters stay, and so does a command
/// that is to be run somewhere: after the allocation of `alloc exec` nothing is a flag of ours.
pub(crate) fn rewrite(args: impl IntoIterator<Item = String>) -> Vec<String> {
    let args: Vec<String> = args.into_iter().collect();
    let command = match args.get(1..3) {
        Some([verb, sub]) if verb == "alloc" && sub == "exec" => exec_operand(&args).map(|at| at + 1),
        _ => None,
    };
    let mut verbatim = false;
    args.into_iter()
        .enumerate()
        .map(|(position, arg)| {
            if verbatim || position == 0 || command.is_some_and(|at| position >= at) {
                return arg;
            }
            if arg == "--" {
                verbatim = true;
                return arg;
            }
            let Some(rest) = arg.strip_prefix('-') else {
                return arg;
            };
            let name = rest.split('=').next().unwrap_or_default();
            let is_flag = name.len() > 1 && name.starts_with(|c: char| c.is_ascii_alphabetic());
            if is_flag { format!("--{rest}") } else { arg }
        })
        .collect()
}

/// Where `alloc exec` names its allocation.
fn exec_operand(args: &[String]) -> Option<usize> {
    let mut at = 3;
    while let Some(arg) = args.get(at) {
        if !arg.starts_with('-') {
            return Some(at);
        }
        let name = arg.strip_prefix('-').filter(|a| a.starts_with('-')).unwrap_or(arg);
        at += if EXEC_VALUES.contains(&name) { 2 } else { 1 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn one_dash_becomes_two() {
        for (input, output) in [
            ("drover job run -detach -var=a=b x.hcl", "drover job run --detach --var=a=b x.hcl"),
            ("drover alloc logs -f -tail -n 5 abc", "drover alloc logs -f --tail -n 5 abc"),
            ("drover node drain --enable -deadline -1", "drover node drain --enable --deadline -1"),
            ("drover job plan -", "drover job plan -"),
            ("drover alloc exec a -- ls -la", "drover alloc exec a -- ls -la"),
            ("drover alloc exec -task web -t=false abc ls -lah -color", "drover alloc exec --task web -t=false abc ls -lah -color"),
            ("drover alloc exec -job web find / -name x", "drover alloc exec --job web find / -name x"),
            ("-weird agent", "-weird agent"),
        ] {
            let got = rewrite(input.split(' ').map(str::to_owned));
            assert_eq!(got.join(" "), output, "{input}");
        }
    }
}
