//! The command line as people type it, made into what clap parses: short forms (`logs` for `alloc logs`, as Nomad and
//! docker have them), `help VERB`, and Nomad's flags with one dash (`-json`, `-var=k=v`, `-detach=false`), so that
//! muscle memory and scripts work.

use clap::{Arg, ArgAction, Command};

/// Short forms, and what they stand for. Those of Nomad's CLI, and `ps`.
pub(crate) const ALIASES: &[(&str, &[&str])] = &[
    ("alloc-status", &["alloc", "status"]),
    ("client-config", &["node", "config"]),
    ("eval-status", &["eval", "status"]),
    ("action", &["job", "action"]),
    ("exec", &["alloc", "exec"]),
    ("fs", &["alloc", "fs"]),
    ("init", &["job", "init"]),
    ("inspect", &["job", "inspect"]),
    ("logs", &["alloc", "logs"]),
    ("node-drain", &["node", "drain"]),
    ("node-status", &["node", "status"]),
    ("plan", &["job", "plan"]),
    ("ps", &["job", "status"]),
    ("run", &["job", "run"]),
    ("server-members", &["server", "members"]),
    ("start", &["job", "start"]),
    ("stop", &["job", "stop"]),
    ("validate", &["job", "validate"]),
];

/// Rewrites a command line for the tree of commands. After a bare `--` nothing is touched, and so is nothing of a
/// command that is to be run somewhere: after the allocation of `alloc exec` nothing is a flag of ours.
pub(crate) fn rewrite(args: impl IntoIterator<Item = String>, tree: &Command) -> Vec<String> {
    let args = helped(args.into_iter().collect());
    let args = expanded(args, tree);
    let (leaf, verbs) = leaf(tree, &args);
    let ours = if leaf.get_arguments().any(Arg::is_trailing_var_arg_set) { operand(leaf, &args, verbs) } else { None };
    let mut rewritten = Vec::with_capacity(args.len());
    let mut verbatim = false;
    for (position, arg) in args.into_iter().enumerate() {
        verbatim |= arg == "--";
        if verbatim || position < verbs || ours.is_some_and(|at| position > at) {
            rewritten.push(arg);
        } else {
            rewritten.extend(flag(leaf, arg));
        }
    }
    rewritten
}

/// The command that the words at the beginning name, and how many words that are, the program's name among them.
pub(crate) fn leaf<'a>(tree: &'a Command, args: &[String]) -> (&'a Command, usize) {
    let (mut at, mut words) = (tree, 1);
    while let Some(next) = args.get(words).and_then(|word| at.find_subcommand(word)) {
        (at, words) = (next, words + 1);
    }
    (at, words)
}

/// `help VERB…` asks what `VERB… -help` asks, and `-v` what `version` does.
fn helped(mut args: Vec<String>) -> Vec<String> {
    if args.len() == 2 && ["-v", "-version", "--version", "-V"].contains(&args[1].as_str()) {
        args[1] = "version".to_owned();
    }
    if args.get(1).is_some_and(|verb| verb == "help") {
        args.remove(1);
        args.push("--help".to_owned());
    }
    args
}

/// A short form in the place of a verb becomes what it stands for, where that exists.
fn expanded(mut args: Vec<String>, tree: &Command) -> Vec<String> {
    let known = |verbs: &[&str]| verbs.iter().try_fold(tree, |at, verb| at.find_subcommand(verb)).is_some();
    if let Some((_, verbs)) =
        args.get(1).and_then(|verb| ALIASES.iter().find(|(alias, verbs)| alias == verb && known(verbs)))
    {
        args.splice(1..2, verbs.iter().map(|v| (*v).to_owned()));
    }
    args
}

/// A flag as clap takes it: two dashes for names of two letters or more, no value after a switch. Negative numbers,
/// single letters and what is no flag stay as they are.
fn flag(leaf: &Command, arg: String) -> Vec<String> {
    let Some(rest) = arg.strip_prefix('-').map(|rest| rest.strip_prefix('-').unwrap_or(rest)) else {
        return vec![arg];
    };
    let (name, value) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
    let known = named(leaf, name);
    if let (Some(known), Some(value)) = (known, value)
        && matches!(known.get_action(), ArgAction::SetTrue)
        && let Some(on) = boolean(value)
    {
        return if on { vec![dashed(name)] } else { Vec::new() };
    }
    if arg.starts_with("--") || name.len() < 2 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return vec![arg];
    }
    // `-it`, as docker has it.
    if known.is_none()
        && value.is_none()
        && name.chars().all(|c| leaf.get_arguments().any(|a| a.get_short() == Some(c)))
    {
        return name.chars().map(|c| format!("-{c}")).collect();
    }
    vec![format!("--{rest}")]
}

fn dashed(name: &str) -> String {
    if name.len() == 1 { format!("-{name}") } else { format!("--{name}") }
}

/// The argument that a flag's name stands for, without its dashes.
pub(crate) fn named<'a>(leaf: &'a Command, name: &str) -> Option<&'a Arg> {
    let short = |a: &Arg| name.len() == 1 && a.get_short().is_some_and(|c| name.starts_with(c));
    leaf.get_arguments()
        .find(|a| a.get_long() == Some(name) || a.get_all_aliases().is_some_and(|all| all.contains(&name)) || short(a))
}

/// The words that Go's flags take for yes and no.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Whether the next word is the value of that flag.
pub(crate) fn takes_next(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
        && !arg.is_require_equals_set()
        && !arg.is_positional()
}

/// Where the first operand is.
fn operand(leaf: &Command, args: &[String], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(arg) = args.get(at) {
        let Some(name) = arg.strip_prefix('-').map(|rest| rest.strip_prefix('-').unwrap_or(rest)) else {
            return Some(at);
        };
        at += if named(leaf, name).is_some_and(takes_next) { 2 } else { 1 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{ALIASES, leaf, rewrite};

    #[test]
    fn one_dash_becomes_two() {
        for (input, output) in [
            ("drover job run -detach -var=a=b x.hcl", "drover job run --detach --var=a=b x.hcl"),
            ("drover alloc logs -f -tail -n 5 abc", "drover alloc logs -f --tail -n 5 abc"),
            ("drover node drain --enable -deadline -1", "drover node drain --enable --deadline -1"),
            ("drover job plan -", "drover job plan -"),
            ("drover alloc exec a -- ls -la", "drover alloc exec a -- ls -la"),
            (
                "drover alloc exec -task web -t=false abc ls -lah -color",
                "drover alloc exec --task web -t=false abc ls -lah -color",
            ),
            ("drover alloc exec -job web find / -name x", "drover alloc exec --job web find / -name x"),
            ("-weird agent", "-weird agent"),
            // Booleans with a value.
            ("drover job run -detach=true x.hcl", "drover job run --detach x.hcl"),
            ("drover job run -detach=false x.hcl", "drover job run x.hcl"),
            ("drover alloc logs --f=1 -stderr=F abc", "drover alloc logs -f abc"),
            // Short forms.
            ("drover run -detach x.hcl", "drover job run --detach x.hcl"),
            ("drover ps", "drover job status"),
            ("drover logs -f hello", "drover alloc logs -f hello"),
            ("drover exec -it -task web hello ls -la", "drover alloc exec -i -t --task web hello ls -la"),
            ("drover exec -job hello -- ls -it", "drover alloc exec --job hello -- ls -it"),
            ("drover node-drain -enable -self", "drover node drain --enable --self"),
            // A verb of that name in a group is no short form.
            ("drover alloc stop abc", "drover alloc stop abc"),
            // Help.
            ("drover help", "drover --help"),
            ("drover help job run", "drover job run --help"),
            ("drover help logs", "drover alloc logs --help"),
            ("drover job run -help", "drover job run --help"),
            ("drover -version", "drover version"),
            ("drover -v", "drover version"),
        ] {
            let got = rewrite(input.split(' ').map(str::to_owned), &crate::command());
            assert_eq!(got.join(" "), output, "{input}");
        }
    }

    #[test]
    fn short_forms_hide_no_command() {
        let tree = crate::command();
        for (alias, verbs) in ALIASES {
            assert!(tree.find_subcommand(alias).is_none(), "{alias} is a command of its own");
            assert!(tree.find_subcommand(verbs[0]).is_some(), "{alias} stands for nothing");
            let args: Vec<String> = std::iter::once("drover").chain(verbs.iter().copied()).map(str::to_owned).collect();
            assert!(leaf(&tree, &args).1 >= 2);
        }
    }
}
