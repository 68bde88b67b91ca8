//! `drover driver doctor`: whether a driver finds what tasks will need, looked at before there is a task.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use driver_sdk::proto::base::{
    ConfigSchemaRequest, NomadConfig, NomadDriverConfig, PluginInfoRequest, SetConfigRequest,
};
use driver_sdk::proto::driver::{FingerprintRequest, fingerprint_response::HealthState};
use driver_sdk::proto::handshake::API_VERSION;
use driver_sdk::proto::remote::{DescribeRequest, ExamineRequest, finding};
use driver_sdk::testing::Plugin;
use driver_sdk::{Finding, Verdict};
use serde_json::{Map, Value, json};

use super::check;
use crate::output;

/// How long a driver may look.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a built-in driver or of a plugin in the `plugin_dir` of the configuration, or path of a plugin
    /// executable
    driver: String,
    /// Arguments of the executable
    #[arg(last = true)]
    args: Vec<OsString>,
    /// Configuration file of the agent with the `plugin` block of the driver, or a file with the body of its `config`;
    /// HCL or JSON
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Looks and tells; the exit code is 1 when something fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = args.config.as_deref().map(check::read).transpose()?.unwrap_or_else(|| json!({}));
    let (program, words) = check::program(&found_in_plugin_dir(&args.driver, &config), &args.args)?;
    let mut command = Command::new(program);
    command.args(words);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime.block_on(async {
        tokio::select! {
            findings = tokio::time::timeout(PATIENCE, examine(command, &config)) => {
                findings.with_context(|| format!("the driver {:?} has not answered within {PATIENCE:?}", args.driver))?
            }
            // The plugin goes with this program.
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        }
    })?;
    if args.json {
        output::json(&findings.iter().map(as_json).collect::<Vec<_>>())?;
    } else {
        output::line(as_text(&findings).trim_end());
    }
    let fails = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A plugin of the agent by its name, as its path.
fn found_in_plugin_dir(driver: &str, config: &Value) -> String {
    let dir = config["plugin_dir"].as_str().filter(|_| !driver.contains('/'));
    let path = dir.map(|dir| Path::new(dir).join(driver)).filter(|path| path.is_file());
    path.map_or_else(|| driver.to_owned(), |path| path.display().to_string())
}

/// Examines a program with a configuration; whether nothing fails. Prints the findings if something does.
///
/// # Errors
/// The program did not answer.
pub(crate) async fn prints_no_failure(program: &Path, config: &Value) -> Result<bool> {
    let findings = examine(Command::new(program), config).await?;
    let fails = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    if fails {
        output::line(as_text(&findings).trim_end());
    }
    Ok(!fails)
}

/// The body of a plugin's `config`: the file itself, or what an agent's configuration says of the plugin of this name.
pub(crate) fn body(config: &Value, name: &str) -> Value {
    let agent = ["plugin", "plugin_dir", "client", "server", "data_dir"].iter().any(|key| config.get(key).is_some());
    if !agent {
        return config.clone();
    }
    // Blocks come as lists.
    let items = |value: &Value| match value {
        Value::Array(items) => items.clone(),
        Value::Null => Vec::new(),
        other => vec![other.clone()],
    };
    let of = |values: Vec<Value>, key: &str| -> Vec<Value> { values.iter().flat_map(|v| items(&v[key])).collect() };
    let bodies = of(of(items(&config["plugin"]), name), "config");
    let all = bodies.into_iter().filter_map(|body| body.as_object().cloned()).flatten().collect::<Map<_, _>>();
    Value::Object(all)
}

/// Everything that can be found out about a plugin that is started for it.
async fn examine(command: Command, config: &Value) -> Result<Vec<Finding>> {
    let mut plugin = match Plugin::launch(command).await {
        Ok(plugin) => plugin,
        Err(why) => {
            return Ok(vec![Finding::fail("plugin", why, "run the program by hand: it says more on standard error")]);
        }
    };
    let info = plugin.base.plugin_info(PluginInfoRequest {}).await?.into_inner();
    let mut findings = vec![Finding::pass("plugin", format!("{} {}", info.name, info.plugin_version))];
    let schema = plugin.base.config_schema(ConfigSchemaRequest {}).await?.into_inner().spec.unwrap_or_default();
    let body = body(config, &info.name);
    findings.push(configure(&mut plugin, &schema, &body, &info.name).await);
    findings.push(health(&mut plugin).await);
    if let Ok(described) = plugin.remote.describe(DescribeRequest {}).await {
        let provider = described.into_inner().provider;
        if !provider.is_empty() {
            findings.push(Finding::pass("runtime", provider));
        }
        if let Ok(examined) = plugin.remote.examine(ExamineRequest {}).await {
            findings.extend(examined.into_inner().findings.into_iter().map(own));
        }
    }
    plugin.shut_down().await?;
    Ok(findings)
}

async fn configure(
    plugin: &mut Plugin,
    schema: &driver_sdk::proto::hclspec::Spec,
    body: &Value,
    name: &str,
) -> Finding {
    let what = "configuration";
    let remedy = format!("correct plugin {name:?} {{ config {{ … }} }}; `drover driver schema` lists its keys");
    let msgpack_config = match driver_host::encode_config(schema, body, &driver_host::Variables::default()) {
        Ok(encoded) => encoded,
        Err(why) => return Finding::fail(what, why, remedy),
    };
    let agent = NomadConfig { driver: Some(NomadDriverConfig::default()) };
    let request =
        SetConfigRequest { msgpack_config, nomad_config: Some(agent), plugin_api_version: API_VERSION.into() };
    match plugin.base.set_config(request).await {
        Ok(_) => Finding::pass(what, "accepted"),
        Err(why) => Finding::fail(what, why.message(), remedy),
    }
}

/// What the driver would tell a node first.
async fn health(plugin: &mut Plugin) -> Finding {
    let what = "health";
    let first = async {
        let mut stream = plugin.driver.fingerprint(FingerprintRequest {}).await?.into_inner();
        stream.message().await
    };
    match first.await {
        Ok(Some(told)) if told.health() == HealthState::Healthy => Finding::pass(what, told.health_description),
        Ok(Some(told)) => Finding::fail(what, told.health_description, "a node with this driver gets no tasks for it"),
        Ok(None) => Finding::fail(what, "the driver tells nothing", "ask its author"),
        Err(why) => Finding::fail(what, why.message(), "ask its author"),
    }
}

fn own(finding: driver_sdk::proto::remote::Finding) -> Finding {
    let verdict = match finding.verdict() {
        finding::Verdict::Pass => Verdict::Pass,
        finding::Verdict::Warning | finding::Verdict::Unspecified => Verdict::Warning,
        finding::Verdict::Fail => Verdict::Fail,
    };
    Finding { what: finding.what, verdict, found: finding.found, remedy: finding.remedy }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Warning => "warning",
        Verdict::Fail => "fail",
    }
}

fn as_json(finding: &Finding) -> Value {
    let Finding { what, verdict, found, remedy } = finding;
    json!({"What": what, "Verdict": word(*verdict), "Found": found, "Remedy": remedy})
}

fn as_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { what, verdict, found, remedy } in findings {
        let lines = |text: &str| text.replace('\n', &format!("\n{:1$}", "", width + 11));
        text.push_str(&format!("{:7}  {what:width$}  {}\n", word(*verdict), lines(found)));
        if !remedy.is_empty() {
            text.push_str(&format!("{:1$}→ {2}\n", "", width + 11, lines(remedy)));
        }
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (passed, warnings, failed) = (count(Verdict::Pass), count(Verdict::Warning), count(Verdict::Fail));
    text.push_str(&format!("\npassed: {passed}, warnings: {warnings}, failed: {failed}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_of_an_agents_configuration_is_found() {
        let agent = json!({
            "data_dir": "/d", "plugin_dir": "/p",
            "plugin": [{"far": [{"config": [{"a": 1}]}]}, {"other": [{"config": [{"b": 2}]}]}],
        });
        assert_eq!(body(&agent, "far"), json!({"a": 1}));
        assert_eq!(body(&agent, "none"), json!({}));
        assert_eq!(body(&json!({"a": 1}), "far"), json!({"a": 1}));
        let as_json_file = json!({"client": {"enabled": true}, "plugin": {"far": {"config": {"a": 1}}}});
        assert_eq!(body(&as_json_file, "far"), json!({"a": 1}));
    }

    #[test]
    fn a_plugin_of_the_agents_directory_is_meant_by_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("far"), "").expect("written");
        let config = json!({"plugin_dir": dir.path()});
        assert_eq!(found_in_plugin_dir("far", &config), dir.path().join("far").display().to_string());
        assert_eq!(found_in_plugin_dir("raw_exec", &config), "raw_exec");
        assert_eq!(found_in_plugin_dir("./far", &config), "./far");
    }

    #[test]
    fn each_finding_says_what_to_do() {
        let findings = [Finding::pass("a", "well"), Finding::fail("clock", "an hour\nlate", "set it")];
        assert_eq!(
            as_text(&findings),
            "pass     a      well\nfail     clock  an hour\n                late\n                → set it\n\n\
                passed: 1, warnings: 0, failed: 1\n"
        );
        assert_eq!(
            as_json(&findings[1]),
            json!({"What": "clock", "Verdict": "fail", "Found": "an hour\nlate", "Remedy": "set it"})
        );
    }
}
