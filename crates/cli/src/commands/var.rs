//! `drover var put|get|list|purge|init|lock`.

use std::{io::IsTerminal as _, process::ExitCode, time::Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use api::{call, client::ClientError, go_json, shapes::VariableView};
use http::StatusCode;
use serde_json::json;

use super::{
    ApiArgs, Page,
    pages::{Also, variable_page},
    spec_file,
    var_show::{self, Form, Out},
    var_spec::{self, Given, Language},
};
use crate::{
    conn::Conn,
    output::{self, Table},
    when,
};

const EXAMPLE_HCL: &str = r#"# A variable, for `drover var put @spec.nsv.hcl`; its operands win over this file.
path = "nomad/jobs/example"

# The default is the namespace of the command.
# namespace = "default"

# Write only while the variable has this modify index; without it, only if there is no such variable.
# modify_index = 0

items {
  user     = "web"
  password = "change me"
}
"#;

const EXAMPLE_JSON: &str = r#"{
  "Path": "nomad/jobs/example",
  "Namespace": "default",
  "Items": {
    "user": "web",
    "password": "change me"
  }
}
"#;

/// Forms of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListForm {
    GoTemplate,
    Json,
    Table,
    Terse,
}

/// Arguments of `var put`.
#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    #[command(flatten)]
    api: ApiArgs,
    /// Write only if the variable has this modify index; 0: only if there is none
    #[arg(long, value_name = "INDEX", conflicts_with = "force")]
    check_index: Option<u64>,
    /// Write whatever is there
    #[arg(long)]
    force: bool,
    /// Language of standard input (default: json), and of a file whose name does not end in .hcl or .json
    #[arg(long = "in", value_name = "LANGUAGE")]
    language: Option<Language>,
    #[command(flatten)]
    out: Out,
    /// Tell on standard error what is done
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    also: Also,
    /// A path, then @FILE or `-` (standard input) that describes the variable, then items: KEY=VALUE, KEY=@FILE,
    /// KEY=-; KEY= takes an item away. The path or the description may be left out
    #[arg(required = true, value_name = "PATH|@FILE|-|KEY=VALUE")]
    operands: Vec<String>,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create or change a variable
    ///
    /// The items replace all of the variable. Without -check-index and -force the variable must be as it was read: it
    /// must have the modify index of the description, and without one there must be none.
    Put(Put),
    /// Show a variable
    Get {
        #[command(flatten)]
        api: ApiArgs,
        /// Print the value of this item alone, without a line end
        #[arg(long, value_name = "KEY", conflicts_with_all = ["out", "template"])]
        item: Option<String>,
        #[command(flatten)]
        out: Out,
        #[command(flatten)]
        also: Also,
        /// Path of the variable
        path: String,
    },
    /// List variables, without their items
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        /// How to print the list
        #[arg(long, value_name = "FORM")]
        out: Option<ListForm>,
        /// Template in Go's text/template syntax for -out go-template; its data is what -out json prints
        #[arg(long, value_name = "TEMPLATE")]
        template: Option<String>,
        #[command(flatten)]
        also: Also,
        /// Beginning of the paths
        prefix: Option<String>,
    },
    /// Delete a variable
    Purge {
        #[command(flatten)]
        api: ApiArgs,
        /// Delete only if the variable has this modify index
        #[arg(long, value_name = "INDEX")]
        check_index: Option<u64>,
        /// Path of the variable
        path: String,
    },
    /// Hold the lock of a variable while a command runs
    ///
    /// The lock is waited for. The exit code is that of the command. A command whose lock is lost is stopped.
    Lock(super::var_lock::Args),
    /// End a command when nobody can say that its lock is held: what `var lock` starts
    #[command(hide = true)]
    LockGuard(super::var_lock_guard::Args),
    /// Write an example of a variable's file
    Init {
        /// Language of the example
        #[arg(long, default_value = "hcl")]
        out: Language,
        /// Print nothing
        #[arg(long)]
        quiet: bool,
        /// The new file (default: `spec.nsv.hcl` or `spec.nsv.json`)
        file: Option<String>,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Put(args) => put(args).await,
        Command::Get { api, item, out, also, path } => {
            let form = out.form(Form::Table)?;
            let conn = one_namespace(&api)?;
            let variable = read(&conn, &path).await?;
            also.open(&conn, &variable_page(&variable.path, variable.namespace.as_str())).await;
            match item {
                Some(key) => print_item(&variable, &key)?,
                None => out.print(form, &variable)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::List { api, page, out, template, also, prefix } => {
            let default = if std::io::stdout().is_terminal() { ListForm::Table } else { ListForm::Json };
            let form = out.unwrap_or(default);
            var_show::fits(form == ListForm::GoTemplate, template.as_deref())?;
            let conn = api.conn()?;
            also.open(&conn, "variables").await;
            list(&conn, &page, form, template.as_deref(), prefix.as_deref()).await
        }
        Command::Purge { api, check_index, path } => {
            let (conn, path) = (one_namespace(&api)?, var_spec::clean(&path));
            let call = call::variable_delete(&path).with_some("cas", check_index);
            conn.tell(call).await.map_err(|error| explained(error, &path, check_index, false))?;
            output::line(&format!("Successfully purged variable {path:?}!"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Lock(args) => super::var_lock::run(args).await,
        Command::LockGuard(args) => super::var_lock_guard::run(args).await,
        Command::Init { out, quiet, file } => {
            let (default, text) = match out {
                Language::Hcl => ("spec.nsv.hcl", EXAMPLE_HCL),
                Language::Json => ("spec.nsv.json", EXAMPLE_JSON),
            };
            let path = file.unwrap_or_else(|| default.to_owned());
            spec_file::write_new(&path, text)?;
            if !quiet {
                output::line(&format!("Example variable specification written to {path}"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A connection for what is done to one variable.
pub(super) fn one_namespace(api: &ApiArgs) -> Result<Conn> {
    let conn = api.conn()?;
    ensure!(
        conn.namespace() != "*",
        "The wildcard namespace (\"*\") is not valid for this command: name the namespace of the variable"
    );
    Ok(conn)
}

async fn read(conn: &Conn, path: &str) -> Result<VariableView> {
    conn.ask(call::variable(var_spec::clean(path))).await.map_err(|error| {
        match error.downcast_ref::<ClientError>().is_some_and(ClientError::is_not_found) {
            true => anyhow!("Variable not found: nothing is at {path:?} in namespace {:?}", conn.namespace()),
            false => error,
        }
    })
}

fn print_item(variable: &VariableView, key: &str) -> Result<()> {
    let value = variable.items.as_ref().and_then(|items| items.get(key));
    let value = value.with_context(|| {
        let keys: Vec<&str> = variable.items.iter().flatten().map(|(key, _)| key.as_str()).collect();
        format!("Variable does not contain {key:?} item; it has {}", keys.join(", "))
    })?;
    // To the letter for a program; on a terminal nothing of it steers.
    match std::io::stdout().is_terminal() {
        true => output::bytes(output::visible(value).as_bytes()),
        false => output::bytes(value.as_bytes()),
    }
    Ok(())
}

async fn put(args: Put) -> Result<ExitCode> {
    let form = args.out.form(Form::None)?;
    let conn = one_namespace(&args.api)?;
    let (variable, told) = Given::read(&args.operands, args.language)?.variable(args.api.namespace.as_deref())?;
    let verbose = |text: &str| {
        if args.verbose {
            output::note(text);
        }
    };
    told.iter().for_each(|text| verbose(text));
    let cas = (!args.force).then(|| args.check_index.unwrap_or(variable.modify_index));
    verbose(&format!(
        "writing {:?}, {}",
        variable.path,
        match cas {
            None => "whatever is there".to_owned(),
            Some(0) => "if there is none".to_owned(),
            Some(index) => format!("if its modify index is {index}"),
        }
    ));
    let call = call::variable_put(&variable.path, &variable).with_some("cas", cas);
    let written = conn.ask(call).await.map_err(|error| explained(error, &variable.path, cas, true))?;
    args.also.open(&conn, &variable_page(&written.path, written.namespace.as_str())).await;
    for warning in written.items.iter().flatten().filter_map(|(key, _)| var_spec::needs_index(key)) {
        output::note(&format!("Warning: {warning}"));
    }
    let done = format!("Created variable {:?} with modify index {}", written.path, written.modify_index);
    if form == Form::None {
        output::line(&done)
    } else {
        verbose(&done)
    }
    args.out.print(form, &written)?;
    Ok(ExitCode::SUCCESS)
}

/// The error of a write, in which a variable that is not as it was expected is described.
fn explained(error: anyhow::Error, path: &str, cas: Option<u64>, may_force: bool) -> anyhow::Error {
    let conflict = match error.downcast_ref::<ClientError>() {
        Some(ClientError::Status { status: StatusCode::CONFLICT, message }) => {
            go_json::from_str::<VariableView>(message).ok()
        }
        _ => None,
    };
    match conflict {
        Some(current) => anyhow!("{}", conflicting(path, cas, &current, may_force)),
        None => error,
    }
}

/// What stands there instead of what was expected, and what to do. Values are not shown: a terminal is logged.
fn conflicting(path: &str, cas: Option<u64>, current: &VariableView, may_force: bool) -> String {
    let head = format!("Check-and-Set conflict on variable {path:?}");
    let is = current.modify_index;
    match cas {
        // Nothing was expected, and nothing is told of what is there.
        None | Some(0) if is == 0 => format!("{head}: it is locked, and only who holds its lock may change it"),
        Some(expected) if is == 0 => format!(
            "{head}\nYour provided check-index {expected} does not match the server-side index: there is no such \
             variable, or it is locked.\nTo create it, use -check-index=0."
        ),
        _ => {
            let keys: Vec<&str> = current.items.iter().flatten().map(|(key, _)| key.as_str()).collect();
            let has = if keys.is_empty() { String::new() } else { format!("\nIt has the items {}.", keys.join(", ")) };
            let force = if may_force { "-force or " } else { "" };
            format!(
                "{head}\nYour provided check-index {} does not match the server-side index {is}.\nThe server-side item \
                 was last updated on {}.{has}\nIf you are sure that you want this, add {force}-check-index={is} before \
                 the operands.",
                cas.unwrap_or_default(),
                when::stamp(current.modify_time)
            )
        }
    }
}

async fn list(
    conn: &Conn,
    page: &Page,
    form: ListForm,
    template: Option<&str>,
    prefix: Option<&str>,
) -> Result<ExitCode> {
    let began = Instant::now();
    let asked = call::variables().with_some("prefix", prefix.map(|prefix| prefix.trim_start_matches('/')));
    let answer = conn.answer(page.narrowed(asked)).await?;
    let (rows, meta) = (answer.value, answer.meta);
    match form {
        // Who pages needs the rest of the answer.
        ListForm::Json if page.per_page.is_some() => output::json(&json!({"Data": rows, "QueryMeta": {
            "KnownLeader": meta.known_leader,
            "LastContact": u64::try_from(meta.last_contact.as_nanos()).unwrap_or(u64::MAX),
            "LastIndex": meta.index,
            "NextToken": meta.next_token,
            "RequestTime": u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }}))?,
        ListForm::Json => output::json(&rows)?,
        ListForm::GoTemplate => var_show::by_template(template, &rows)?,
        ListForm::Table | ListForm::Terse if rows.is_empty() => output::note("No matching variables found"),
        ListForm::Terse if conn.namespace() == "*" => {
            let row = |v: &VariableView| vec![v.namespace.to_string(), v.path.clone()];
            let mut table = Table::new(row(&rows[0]));
            rows[1..].iter().for_each(|variable| table.row(row(variable)));
            table.render().iter().for_each(|line| output::line(line));
        }
        ListForm::Terse => rows.iter().for_each(|variable| output::line(&variable.path)),
        ListForm::Table => {
            let mut table = Table::new(["Namespace", "Path", "Last Updated"]);
            for v in &rows {
                table.row([v.namespace.to_string(), v.path.clone(), when::stamp(v.modify_time)]);
            }
            table.print();
        }
    }
    if form != ListForm::Json && !meta.next_token.is_empty() {
        output::note(&format!("Next page token: {}", meta.next_token));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_says_what_is_there_and_what_to_do_without_values() {
        let current = VariableView {
            path: "a".to_owned(),
            modify_index: 12,
            modify_time: 1_700_000_000_000_000_000,
            items: Some([("password".to_owned(), "hush".to_owned())].into()),
            ..VariableView::default()
        };
        let conflict =
            |text: String| anyhow::Error::from(ClientError::Status { status: StatusCode::CONFLICT, message: text });
        let sent = go_json::to_string(&current, false).expect("JSON");
        let said = explained(conflict(sent.clone()), "a", Some(0), true).to_string();
        for part in [
            "Check-and-Set conflict",
            "check-index 0 does not match the server-side index 12",
            "2023-11-14T22:13:20Z",
            "items password",
            "-force or -check-index=12",
        ] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(!said.contains("hush"), "{said}");
        assert!(!explained(conflict(sent), "a", Some(3), false).to_string().contains("-force"));
        let nothing = go_json::to_string(&VariableView::default(), false).expect("JSON");
        let of = |cas| explained(conflict(nothing.clone()), "a", cas, true).to_string();
        assert!(of(Some(7)).contains("there is no such variable") && of(Some(7)).contains("-check-index=0"));
        assert!(of(None).contains("it is locked") && of(Some(0)).contains("it is locked"));
        // Anything else is told as it is.
        assert_eq!(
            explained(conflict("busy".to_owned()), "a", None, true).to_string(),
            conflict("busy".into()).to_string()
        );
    }

    #[test]
    fn the_examples_describe_a_variable() {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in [("v.hcl", EXAMPLE_HCL), ("v.json", EXAMPLE_JSON)] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("written");
            let given = Given::read(&[format!("@{}", path.display())], None).expect(name);
            let (variable, _) = given.variable(None).expect(name);
            assert_eq!(variable.path, "nomad/jobs/example");
            assert_eq!(variable.items.map(|items| items.len()), Some(2));
        }
    }
}
