//! Reference pages of the documentation, made from what the program itself goes by: its tree of commands, its table
//! of settings, the routes of its HTTP API. `cargo xtask docs` writes them; these tests fail when one is out of date.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use clap::{Arg, ArgAction, Command};

use crate::{
    agent::table::{Fate, Kind, Row, TABLE},
    examples, help,
    page::check,
};

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "\\<").trim().to_owned()
}

/// As [`cell`], in code.
fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}

/// Whether it is more than a switch, which may be written with a value too.
fn takes_value(arg: &Arg) -> bool {
    let may_stand_alone = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) && !may_stand_alone
}

/// Text in lines of at most a hundred columns.
pub(crate) fn folded(text: &str) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 {
            let breaks = width + 1 + length > 100;
            out.push(if breaks { '\n' } else { ' ' });
            width = if breaks { 0 } else { width + 1 };
        }
        out.push_str(word);
        width += length;
    }
    out
}

/// A flag as people write it, with the name of its value.
fn flag(arg: &Arg) -> String {
    let named = || Some(arg.get_value_names()?.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(" "));
    let values = || named().unwrap_or_else(|| arg.get_id().as_str().to_uppercase().replace('-', "_"));
    let takes = takes_value(arg);
    match (arg.get_long(), arg.get_short()) {
        (Some(long), _) if takes => format!("-{long} {}", values()),
        (Some(long), _) => format!("-{long}"),
        (None, Some(short)) if takes => format!("-{short} {}", values()),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => values(),
    }
}

/// Flags and arguments as a table; nothing for none.
fn flags<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let mut rows = String::new();
    for arg in args {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let default: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        let default = if takes_value(arg) { default.join(",") } else { String::new() };
        // Writing to a string does not fail.
        let _ = writeln!(rows, "| {} | {} | {} |", code(&flag(arg)), code(&default), cell(&help));
    }
    if rows.is_empty() { rows } else { format!("| flag or argument | default | meaning |\n|---|---|---|\n{rows}") }
}

/// Every command that people see, with its flags. Those of the connection stand once, at the top.
fn commands(tree: &Command) -> String {
    let mut paths = Vec::new();
    help::collect(tree, &mut Vec::new(), &mut paths);
    paths.sort();
    let (mut out, mut connection) = (String::new(), BTreeMap::new());
    for path in &paths {
        let Some(command) = path.iter().try_fold(tree, |at, name| at.find_subcommand(name)) else { continue };
        let visible = || {
            command
                .get_arguments()
                .filter(|arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version")
        };
        let common = |arg: &&Arg| arg.get_help_heading() == Some(help::CONNECTION);
        visible().filter(common).for_each(|arg| drop(connection.insert(flag(arg), arg.clone())));
        let _ = write!(out, "\n## `drover {}`\n\n", path.join(" "));
        let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(out, "{}", folded(&format!("{}.", cell(about.trim_end_matches('.')))));
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        if let Some(lines) = examples::of(&names) {
            let commented = |line: &str| {
                line.split_once("  ").map_or(line.to_owned(), |(shown, why)| format!("{shown}  # {}", why.trim()))
            };
            let lines: Vec<_> = lines.trim_end().lines().map(commented).collect();
            let _ = writeln!(out, "\n```sh\n{}\n```", lines.join("\n"));
        }
        let own = flags(visible().filter(|arg| !common(arg)));
        if !own.is_empty() {
            let _ = write!(out, "\n{own}");
        }
        if visible().any(|arg| common(&arg)) {
            let _ = writeln!(out, "\nIt also takes the [connection options](#connection-options).");
        }
    }
    format!("## Connection options\n\n{}{out}", flags(connection.values()))
}

/// What is to be said of settings that work.
const NOTES: &[(&str, &str)] = &[
    ("bind_addr", BEYOND_LOOPBACK),
    ("addresses.http", BEYOND_LOOPBACK),
    ("addresses.rpc", BEYOND_LOOPBACK),
    ("drover.insecure", "an agent without TLS or strict introductions starts beyond loopback only with it"),
];
const BEYOND_LOOPBACK: &str = "beyond loopback, an agent whose API has no TLS, or whose node RPC has neither TLS nor \
    strict introductions, starts only with drover.insecure";

/// Every setting and what becomes of it.
fn settings(table: &[Row]) -> String {
    let mut out = String::from("| setting | value | in Drover |\n|---|---|---|\n");
    for row in table {
        let value = match row.kind {
            Kind::Text => "text",
            Kind::Bool => "true or false",
            Kind::Int => "whole number",
            Kind::Float => "number",
            Kind::Span => "time span",
            Kind::Size => "size with a unit",
            Kind::Texts => "list of texts",
            Kind::Map => "names with values",
            Kind::Block => "block",
            Kind::Blocks => "blocks with a label",
            Kind::Foreign => "block that a driver reads",
        };
        let fate = match row.fate {
            Fate::Works => match NOTES.iter().find(|(path, _)| *path == row.path) {
                Some((_, note)) => format!("works; {}", cell(note)),
                None => "works".to_owned(),
            },
            Fate::Idle(why) => format!("accepted, without effect: {}", cell(why)),
            Fate::Refused(why) => format!("refused: {}", cell(why)),
            Fate::Only(values, why) => {
                format!(
                    "works with {}; refused with others: {}",
                    values.iter().map(|v| code(v)).collect::<Vec<_>>().join(", "),
                    cell(why)
                )
            }
        };
        let _ = writeln!(out, "| {} | {value} | {fate} |", code(row.path));
    }
    out
}

/// Every endpoint of the API: what it does with each method, and whether this release has it.
fn endpoints() -> String {
    let mut out = String::from("| path | method | what it does | what its caller needs |\n|---|---|---|---|\n");
    for endpoint in server_http::endpoints().filter(|endpoint| !endpoint.pattern.starts_with("/ui")) {
        for verb in endpoint.verbs {
            let what = if verb.refused { format!("*refused by name*: {}", verb.doc) } else { verb.doc.to_owned() };
            let path = code(&endpoint.pattern.replace('*', ":"));
            let _ = writeln!(out, "| {path} | {} | {} | {} |", verb.method, cell(&what), cell(&verb.needs));
        }
    }
    out
}

#[test]
fn the_reference_of_commands_is_current() {
    check("cli.md", "commands", &commands(&crate::command()));
}

#[test]
fn the_reference_of_settings_is_current() {
    check("compatibility/settings.md", "settings", &settings(TABLE));
}

#[test]
fn the_reference_of_endpoints_is_current() {
    check("http-api.md", "endpoints", &endpoints());
}

#[test]
fn the_failure_sheet_is_current() {
    check("../guides/operating-remote-tasks.md", "failures", &crate::check::table());
}

#[test]
fn a_new_flag_and_a_new_setting_change_the_page() {
    let tree = |flag: &'static str| {
        Command::new("a").subcommand(Command::new("b").about("Do it").arg(Arg::new("c").long(flag).help("How")))
    };
    let (one, other) = (commands(&tree("fast")), commands(&tree("slow")));
    assert!(
        one.contains("## `drover b`\n\nDo it.\n") && one.contains("| `-fast C` |  | How |") && one != other,
        "{one}"
    );
    let row = |fate| [Row { path: "a.b", kind: Kind::Bool, fate }];
    assert!(settings(&row(Fate::Works)).ends_with("| `a.b` | true or false | works |\n"));
    assert!(settings(&row(Fate::Refused("why"))).ends_with("| refused: why |\n"));
}

/// Commands of ours in a page's blocks of code: the words of each, with the line that they stand in.
fn shown(page: &str) -> Vec<(usize, Vec<String>)> {
    let (mut code, mut shell, mut found) = (false, false, Vec::new());
    for (at, line) in page.lines().enumerate() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            code = !code;
            // A configuration has a block `drover`.
            shell = code && kind != "hcl";
            continue;
        }
        let line = line.trim_start().trim_start_matches("$ ");
        if !shell || !line.starts_with("drover ") {
            continue;
        }
        // What follows a hash is a comment; what follows a pipe, a redirection or a semicolon belongs to the shell.
        let mut own = line.split(" #").next().unwrap_or_default().to_owned();
        // `[-json]` may be left out, and parses when it is not; of `[-a | -b]` the first is taken.
        while let Some((begin, end)) = own.find(" | ").and_then(|at| Some((at, at + own[at..].find(']')?))) {
            own.replace_range(begin..end, "");
        }
        let own = own.split(['|', '>', '<', ';', '\\']).next().unwrap_or_default();
        let words = own.split_whitespace().map(|word| word.trim_matches(['"', '\'', '[', ']', '…']));
        // N stands for a number.
        let words = words.map(|word| if word == "N" { "1" } else { word }.to_owned());
        found.push((at + 1, words.collect()));
    }
    found
}

#[test]
fn commands_that_documents_show_parse() {
    use clap::Parser as _;
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (mut dirs, mut pages) = (vec![root.join("docs")], vec![root.join("README.md"), root.join("CONTRIBUTING.md")]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory").flatten() {
            if entry.path().is_dir() { dirs.push(entry.path()) } else { pages.push(entry.path()) }
        }
    }
    let (tree, mut wrong, mut seen) = (crate::command(), Vec::new(), 0);
    for page in pages.iter().filter(|page| page.extension().is_some_and(|e| e == "md")) {
        for (line, words) in shown(&fs::read_to_string(page).expect("a page")) {
            seen += 1;
            if let Err(error) = crate::Cli::try_parse_from(crate::argv::rewrite(words, &tree)) {
                let help = matches!(
                    error.kind(),
                    clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion
                );
                wrong.extend((!help).then(|| format!("{}:{line}: {error}", page.display())));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "only {seen} commands were found");
}

#[test]
fn commands_are_found_in_blocks_of_code_only() {
    let page = "drover no\n```sh\n$ drover a -b C   # why\ndrover d | drover e\ndrover g [-h | -i] [J]…\ncargo \
        f\n```\n`drover g`\n```hcl\ndrover {\n```\n";
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        shown(page),
        [
            (3, words(&["drover", "a", "-b", "C"])),
            (4, words(&["drover", "d"])),
            (5, words(&["drover", "g", "-h", "J"]))
        ]
    );
}

/// What job files may not ask for, with the reason that people read at submission.
fn refused() -> String {
    let mut text = "| in | option | reason |\n|---|---|---|\n".to_owned();
    for (place, feature, reason) in model::unsupported::table() {
        let _ = writeln!(text, "| {place} | {} | {} |", code(feature), cell(reason));
    }
    text
}

/// Each command of Nomad's with its flags: what works, and what is refused for which reason.
fn of_nomad() -> String {
    let tree = crate::command();
    let mut text = "| command | in Drover | flags |\n|---|---|---|\n".to_owned();
    for (words, flags) in crate::absent::of_nomad() {
        let name = code(&words.join(" "));
        let (last, before) = words.split_last().expect("a command");
        if words.iter().try_fold(&tree, |at, word| at.find_subcommand(word)).is_none() {
            let why = crate::absent::reason(before, last).expect("a reason");
            let _ = writeln!(text, "| {name} | refused: {} |  |", cell(why));
            continue;
        }
        let connection = |flag: &str| crate::absent::OF_CONNECTIONS.contains(&flag);
        let mut others: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        let mut works = Vec::new();
        for flag in &flags {
            let shown = format!("`-{flag}`");
            match crate::absent::of_flag(&words, flag) {
                Some(Fate::Refused(why)) => others.entry(("refused", why)).or_default().push(shown),
                Some(Fate::Idle(why)) => others.entry(("accepted, without effect", why)).or_default().push(shown),
                Some(Fate::Only(_, why)) => others.entry(("refused with some values", why)).or_default().push(shown),
                Some(Fate::Works) | None if connection(flag) => {}
                Some(Fate::Works) | None => works.push(shown),
            }
        }
        let others = others.iter().map(|((fate, why), flags)| format!("{fate}: {} ({})", flags.join(" "), cell(why)));
        let works = works.join(" ");
        let all: Vec<String> = Some(works).filter(|w| !w.is_empty()).into_iter().chain(others).collect();
        let _ = writeln!(text, "| {name} | works | {} |", all.join("; "));
    }
    text
}

#[test]
fn the_commands_of_nomad_are_current() {
    check("compatibility/commands.md", "commands", &of_nomad());
}

#[test]
fn the_list_of_refused_options_is_current() {
    check("../compatibility.md", "refused", &refused());
}
