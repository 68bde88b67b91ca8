//! What people see when they ask for help or mistype: what a command is, examples, its own flags, and last the flags
//! of the connection.

use std::process::ExitCode;

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{absent, agent::table::Fate, argv, examples, output};

/// The heading of the flags that every command has which asks an agent.
pub(crate) const CONNECTION: &str = "Connection options";

/// Help in our order: examples come before the flags.
const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";

/// At the end of the help of `drover` itself.
const SHORT_FORMS: &str = "\
Short forms:
  run, plan, validate, stop, start, inspect, init   as `drover job …`
  action                                            as `drover job action`
  logs, exec, fs                                    as `drover alloc …`
  ps                                                as `drover job status`

`drover help COMMAND` shows what a command takes, with examples. Flags have one dash or two.";

/// What is suggested at most for a mistyped command.
const SUGGESTIONS: usize = 3;

/// Exit code for a command that does not exist, as shells and Nomad's CLI have it.
const NO_COMMAND: u8 = 127;

/// Gives every command of the tree the layout and its examples.
pub(crate) fn lay_out(tree: Command) -> Command {
    below(tree, &[]).after_help(SHORT_FORMS)
}

fn below(mut command: Command, path: &[&str]) -> Command {
    command = command.help_template(TEMPLATE);
    if let Some(lines) = examples::of(path) {
        command = command.before_help(format!("Examples:\n{}", aligned(lines)));
    }
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        let path: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
        command = command.mut_subcommand(&name, |c| below(c, &path));
    }
    command
}

/// Examples with their comments in one column.
fn aligned(lines: &str) -> String {
    let parts: Vec<(&str, &str)> =
        lines.lines().map(|l| l.split_once("  ").map_or((l, ""), |(shown, why)| (shown, why.trim_start()))).collect();
    let width =
        parts.iter().filter(|(_, why)| !why.is_empty()).map(|(shown, _)| shown.chars().count()).max().unwrap_or(0);
    let shown: Vec<String> =
        parts.iter().map(|(shown, why)| format!("  {shown:width$}    {why}").trim_end().to_owned()).collect();
    shown.join("\n")
}

/// Prints what clap has to say, or says it better. Asked-for help is data; everything else is for people, with exit
/// code 1, 127 where there is no such command.
pub(crate) fn answer(error: &clap::Error, tree: &Command, args: &[String]) -> ExitCode {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) {
                let (_, words) = argv::leaf(tree, args);
                let path: Vec<&str> = args[1..words].iter().map(String::as_str).collect();
                output::note(&no_command(tree, &path, word));
                return ExitCode::from(if path.is_empty() { NO_COMMAND } else { 1 });
            }
        }
        // A word below a command that has none below it, as `monitor export`, or a flag.
        ErrorKind::UnknownArgument => {
            if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) {
                let (_, words) = argv::leaf(tree, args);
                let path: Vec<&str> = args[1..words].iter().map(String::as_str).collect();
                if absent::reason(&path, word).is_some() {
                    output::note(&no_command(tree, &path, word));
                    return ExitCode::from(1);
                }
                let flag = word.trim_start_matches('-').split('=').next().unwrap_or_default();
                if let Some(Fate::Refused(why)) = absent::of_flag(&path, flag) {
                    output::note(&format!("`drover {}` has no flag -{flag}.\n{why}", path.join(" ")));
                    return ExitCode::from(1);
                }
            }
        }
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is nobody's problem.
            drop(error.print());
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    drop(error.print());
    ExitCode::from(if args.len() < 2 { NO_COMMAND } else { 1 })
}

/// Says that there is no such command, and which ones may have been meant.
fn no_command(tree: &Command, path: &[&str], word: &str) -> String {
    let below: String = path.iter().map(|p| format!(" {p}")).collect();
    let mut text = if path.is_empty() {
        format!("drover has no command {word:?}.")
    } else {
        format!("`drover{below}` has no command {word:?}.")
    };
    if let Some(why) = absent::reason(path, word) {
        return format!("{text}\n{why}");
    }
    let meant = suggestions(tree, path, word);
    if !meant.is_empty() {
        text.push_str("\nDid you mean:");
        for m in meant {
            text.push_str(&format!("\n  drover {m}"));
        }
    }
    text.push_str(&format!("\n`drover help{below}` lists the commands."));
    text
}

/// Commands that may have been meant, best first: the same name elsewhere in the tree, then a similar one here, then
/// a similar one anywhere.
fn suggestions(tree: &Command, path: &[&str], word: &str) -> Vec<String> {
    let mut leaves = Vec::new();
    collect(tree, &mut Vec::new(), &mut leaves);
    let mut meant: Vec<String> =
        leaves.iter().filter(|l| l.last().is_some_and(|n| n == word)).map(|l| l.join(" ")).collect();
    let here = path.iter().try_fold(tree, |at, verb| at.find_subcommand(verb)).unwrap_or(tree);
    let mut names: Vec<&str> = here.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name).collect();
    if path.is_empty() {
        names.extend(argv::ALIASES.iter().map(|(alias, _)| *alias));
    }
    if let Some(near) = hcl_lang::nearest(word, names) {
        meant.push(path.iter().copied().chain([near]).collect::<Vec<_>>().join(" "));
    }
    if meant.is_empty()
        && let Some(near) = hcl_lang::nearest(word, leaves.iter().filter_map(|l| l.last()).map(String::as_str))
    {
        meant.extend(leaves.iter().filter(|l| l.last().is_some_and(|n| n == near)).map(|l| l.join(" ")));
    }
    meant.dedup();
    meant.truncate(SUGGESTIONS);
    meant
}

/// The paths of all commands that people see and that are no mere groups.
pub(crate) fn collect(command: &Command, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        path.push(sub.get_name().to_owned());
        if !sub.has_subcommands() || !sub.is_subcommand_required_set() {
            found.push(path.clone());
        }
        collect(sub, path, found);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::{CONNECTION, SHORT_FORMS, collect, no_command, suggestions};

    #[test]
    fn every_command_has_an_example_and_the_connection_comes_last() {
        let mut tree = crate::command();
        let mut leaves = Vec::new();
        collect(&tree, &mut Vec::new(), &mut leaves);
        assert!(leaves.len() > 40, "{leaves:?}");
        for path in &leaves {
            let mut at = &mut tree;
            for name in path {
                at = at.find_subcommand_mut(name).expect("a command");
            }
            let help = at.render_long_help().to_string();
            let path = path.join(" ");
            let example = help.find("Examples:\n").unwrap_or_else(|| panic!("`drover {path}` has no example:\n{help}"));
            let after = &help[example..];
            // What an example shows is the command itself, or one of its short forms.
            let short =
                crate::argv::ALIASES.iter().filter(|(_, verbs)| verbs.join(" ") == path).map(|(alias, _)| *alias);
            let shown =
                std::iter::once(path.as_str()).chain(short).any(|name| after.contains(&format!("drover {name}")));
            assert!(shown, "no example of `drover {path}` shows it:\n{help}");
            if let Some(options) = help.find("\nOptions:") {
                assert!(example < options, "{path}:\n{help}");
                if let Some(connection) = help.find(CONNECTION) {
                    assert!(connection > options, "{path}:\n{help}");
                    assert!(!help[options..connection].contains("--address"), "{path}:\n{help}");
                }
            }
        }
    }

    #[test]
    fn examples_of_the_command_line_parse() {
        use clap::Parser as _;
        let tree = crate::command();
        let mut leaves = Vec::new();
        collect(&tree, &mut Vec::new(), &mut leaves);
        for path in leaves {
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            for line in crate::examples::of(&names).unwrap_or_default().lines() {
                // What follows two blanks is explanation; what comes after a pipe or a redirection belongs to the
                // shell.
                let line = line.split("  ").next().unwrap_or_default();
                let Some(line) = line.split(['|', '>', '<', ';']).find(|l| l.trim_start().starts_with("drover "))
                else {
                    continue;
                };
                let args = line.split_whitespace().map(|w| w.trim_matches(['"', '\'']).to_owned());
                if let Err(error) = crate::Cli::try_parse_from(crate::argv::rewrite(args, &tree)) {
                    panic!("an example of {names:?} does not parse: {line}\n{error}");
                }
            }
        }
    }

    #[test]
    fn mistyped_commands_are_recognized() {
        let tree = crate::command();
        for (path, word, best) in [
            (&[][..], "revert", "job revert"),
            (&[], "members", "server members"),
            (&[], "statsu", "status"),
            (&[], "validat", "validate"),
            (&[], "jbo", "job"),
            (&["job"], "logs", "alloc logs"),
            (&["job"], "statos", "job status"),
            (&["alloc"], "drain", "node drain"),
        ] {
            // Verbs that another release has are not suggested by this one.
            if best.split(' ').try_fold(&tree, |at, verb| at.find_subcommand(verb)).is_none()
                && !best.ends_with("validate")
            {
                continue;
            }
            assert_eq!(suggestions(&tree, path, word).first().map(String::as_str), Some(best), "{path:?} {word}");
        }
        assert!(suggestions(&tree, &[], "xyzzyplugh").is_empty());
        let text = no_command(&tree, &["job"], "drain");
        assert_eq!(
            text,
            "`drover job` has no command \"drain\".\nDid you mean:\n  drover node drain\n`drover help job` lists the \
                commands."
        );
        for (alias, _) in crate::argv::ALIASES.iter().filter(|(a, _)| !a.contains('-')) {
            assert!(SHORT_FORMS.contains(alias), "{alias}");
        }
    }
}
