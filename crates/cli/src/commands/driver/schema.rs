//! `drover driver schema NAME|PATH`: what a driver's configuration takes, asked of the plugin itself.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use driver_sdk::reference::{Row, markdown, rows};
use driver_sdk::testing::{Description, Plugin};
use serde_json::{Value, json};

use super::BUILT_IN;
use crate::output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a built-in driver, or path of a plugin executable
    driver: String,
    /// Arguments of the executable
    #[arg(last = true)]
    args: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints both schemas.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let described = runtime.block_on(async {
        let asked = async {
            let mut plugin = Plugin::launch(program(args)?).await?;
            let described = plugin.describe().await?;
            plugin.shut_down().await?;
            anyhow::Ok(described)
        };
        asked.await.with_context(|| format!("could not ask the driver {:?} for its schema", args.driver))
    })?;
    output::line(&if args.json { serde_json::to_string_pretty(&as_json(&described))? } else { as_text(&described) });
    Ok(ExitCode::SUCCESS)
}

/// A name of ours is ours; a file of that name is reached as `./NAME`.
fn program(args: &Args) -> Result<Command> {
    let mut command = if BUILT_IN.contains(&args.driver.as_str()) {
        let mut own = Command::new(std::env::current_exe().context("could not find this program's own file")?);
        own.args(["driver", &args.driver]);
        own
    } else {
        let path = Path::new(&args.driver);
        anyhow::ensure!(
            path.exists(),
            "there is neither a built-in driver of this name ({}) nor a file at this path; give the path of a \
                plugin program",
            BUILT_IN.join(", ")
        );
        // A bare name would be looked for in PATH.
        Command::new(path.canonicalize()?)
    };
    command.args(&args.args);
    Ok(command)
}

fn as_text(described: &Description) -> String {
    let Description { info, config, task_config } = described;
    let operator = match config {
        Some(config) => markdown(config),
        None => "No configuration is allowed.\n".to_owned(),
    };
    let (name, version, task) = (&info.name, &info.version, markdown(task_config));
    format!(
        "# {name} {version}\n\n## Task: `config {{ … }}`\n\n{task}\n## Agent: `plugin \"{name}\" {{ config {{ … \
        }} }}`\n\n{operator}"
    )
    .trim_end()
    .to_owned()
}

fn as_json(described: &Description) -> Value {
    let list = |rows: Vec<Row>| -> Vec<Value> {
        let row = |row: Row| {
            let Row { key, form, required, default, description } = row;
            json!({ "Key": key, "Type": form, "Required": required, "Default": default, "Description": description })
        };
        rows.into_iter().map(row).collect()
    };
    json!({
        "Name": described.info.name,
        "Version": described.info.version,
        "TaskConfig": list(rows(&described.task_config)),
        "PluginConfig": described.config.as_ref().map(|config| list(rows(config))),
    })
}

#[cfg(test)]
mod tests {
    use driver_sdk::PluginInfo;
    use driver_sdk::schema::{object, string};

    use super::*;

    #[test]
    fn both_schemas_are_shown() {
        let described = Description {
            info: PluginInfo::new("mine", "1.2.3"),
            config: None,
            task_config: object([("command", string().required().describe("What to run."))]),
        };
        let text = as_text(&described);
        for part in ["# mine 1.2.3", "| `command` | string | yes |  | What to run. |", "No configuration is allowed."] {
            assert!(text.contains(part), "{text}");
        }
        let json = as_json(&described);
        assert_eq!((&json["TaskConfig"][0]["Required"], &json["PluginConfig"]), (&true.into(), &Value::Null));
    }
}
