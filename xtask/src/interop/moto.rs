//! moto's server, with a proxy in front of it that loses, delays and refuses.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{cluster::Agent, remote::record, suite};
use crate::{
    local::{BOUND, free_ports, peers, until},
    packages::Skip,
    peer,
    process::Run,
    workspace,
};

const MOTO: &str = "moto[server]==5.2.5";
pub(super) const REGION: &str = "us-east-1";

/// Headers of a call with a JSON body, and of one with a form.
pub(super) const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
pub(super) const FORM: &[(&str, &str)] = &[("Content-Type", "application/x-www-form-urlencoded")];

/// What the suite fails on with moto behind, and why.
const KNOWN: &[(&str, &str)] = &[(
    "logs/complete",
    "the log service has one stream for both outputs: what is written to standard error is on standard output",
)];

/// A Python that has moto.
pub(super) fn need_moto() -> Result<PathBuf, Skip> {
    python().map_err(|why| Skip::because(format!("moto cannot be installed: {why:#}")))
}

fn python() -> Result<PathBuf> {
    let dir = peers()?.join(MOTO.replace("[server]==", "-"));
    peer::cached(&dir, |out| {
        Run::new("python3", [Path::new("-m"), Path::new("venv"), out]).run()?;
        // The scripts of a virtual environment name its place, so that nothing but the interpreter is used of it.
        Run::new(out.join("bin/python"), ["-m", "pip", "install", "-q", MOTO]).run_patiently()
    })?;
    Ok(dir.join("bin/python"))
}

/// moto and the proxy in front of it.
pub(super) struct Moto {
    dir: PathBuf,
    backend: u16,
    proxy: u16,
    own: String,
    children: Vec<Child>,
}

impl Drop for Moto {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
        drop(fs::remove_dir_all(&self.dir));
    }
}

impl Moto {
    /// With the proxy of a service, which is told of these besides the ports. `engine` is where moto runs containers,
    /// `own` what the plugin's `config` says of this service only.
    pub(super) fn start(
        python: &Path,
        service: &str,
        told: &[&str],
        engine: Option<String>,
        own: String,
    ) -> Result<Self> {
        let [backend, proxy] = free_ports()?;
        let dir = std::env::temp_dir().join(format!("drover-interop-{service}-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir)?;
        let mut moto = Self { dir, backend, proxy, own, children: Vec::new() };
        for profile in ["good", "stranger"] {
            let text = format!("[default]\naws_access_key_id = {profile}\naws_secret_access_key = {profile}\n");
            fs::write(moto.dir.join(profile), text)?;
        }
        let serve = "import sys; from moto.server import main; sys.exit(main(sys.argv[1:]))";
        let (backend, proxy) = (backend.to_string(), proxy.to_string());
        moto.spawn(python, engine.as_deref(), &["-c", serve, "-H", "127.0.0.1", "-p", &backend])?;
        let script = workspace::root().join(format!("xtask/interop/{service}/proxy.py")).display().to_string();
        // What the proxy imports is not to be compiled into the source tree.
        moto.spawn(python, engine.as_deref(), &[&["-B", &script, &proxy, &backend], told].concat())?;
        until("the proxy", BOUND, || Ok(moto.calls("").ok()))?;
        Ok(moto)
    }

    fn spawn(&mut self, python: &Path, engine: Option<&str>, args: &[&str]) -> Result<()> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = Command::new(python);
        command.args(args).envs(engine.map(|url| ("DOCKER_HOST", url))).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        self.children.push(command.spawn().with_context(|| format!("could not start {}", python.display()))?);
        Ok(())
    }

    pub(super) fn log(&self) -> String {
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.contains(" 200 ")).collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Body of the plugin's `config`.
    pub(super) fn plugin(&self, credentials: &str) -> String {
        format!(
            "enabled = true\n{}\nregion = {REGION:?}\nendpoint = \"http://127.0.0.1:{}\"\nrequests_per_second = 200\n\
             poll_interval = \"300ms\"\nconsistency_window = \"3s\"\nshared_credentials_file = {:?}",
            self.own,
            self.proxy,
            self.dir.join(credentials),
        )
    }

    /// A call to moto itself, without the proxy.
    pub(super) fn call(&self, service: &str, path: &str, headers: &[(&str, &str)], body: String) -> Result<String> {
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential=check/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, \
                Signature=0"
        );
        let request = ureq::post(format!("http://127.0.0.1:{}{path}", self.backend));
        let request = request.config().http_status_as_error(false).build().header("Authorization", scope);
        let mut answer =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send(body)?;
        let text = answer.body_mut().read_to_string()?;
        ensure!(answer.status().is_success(), "{path} {headers:?} was answered with {}: {text}", answer.status());
        Ok(text)
    }

    /// Tells the proxy something.
    pub(super) fn tell(&self, path: &str, body: &Value) -> Result<()> {
        ureq::post(format!("http://127.0.0.1:{}{path}", self.proxy)).send(body.to_string())?;
        Ok(())
    }

    pub(super) fn rules(&self, rules: Value) -> Result<()> {
        self.tell("/_rules", &rules)
    }

    /// How often a call has come.
    pub(super) fn calls(&self, call: &str) -> Result<u64> {
        let counts: Value =
            ureq::get(format!("http://127.0.0.1:{}/_calls", self.proxy)).call()?.body_mut().read_json()?;
        Ok(counts[call].as_u64().unwrap_or(0))
    }

    /// The doctor and the conformance suite, with these tasks and more arguments; at least so many checks pass.
    pub(super) fn conforms(
        &self,
        plugin: &Path,
        of_suite: Value,
        looked_at: &[&str],
        more: &[&str],
        least: u64,
    ) -> Result<()> {
        let (config, tasks) = (self.dir.join("plugin.hcl"), self.dir.join("tasks.json"));
        fs::write(&config, self.plugin("good"))?;
        fs::write(&tasks, of_suite.to_string())?;
        suite::doctor(&config, plugin, looked_at)?;
        let args = ["-config".into(), config.into(), "-task".into(), tasks.into(), plugin.into()];
        let report = suite::run(more.iter().map(Into::into).chain(args))?;
        let known = |id: &str| KNOWN.iter().any(|(known, _)| *known == id);
        let failed: Vec<_> = report.failed.iter().filter(|(id, _)| !known(id)).collect();
        ensure!(failed.is_empty(), "{failed:#?}");
        let stale: Vec<&str> = KNOWN.iter().map(|(id, _)| *id).filter(|id| !report.failed.contains_key(*id)).collect();
        ensure!(stale.is_empty(), "in the list of known faults, and did not fail: {stale:?}");
        ensure!(report.passed >= least, "too few checks passed: {}", report.passed);
        eprintln!("    {} checks of the conformance suite passed", report.passed);
        Ok(())
    }

    /// Faults of the service: said, and nothing is concluded from them. Afterwards it is as before, which `same` sees.
    /// `look` is the call that looks at `things`.
    pub(super) fn faults(
        &self,
        server: &Agent,
        look: &str,
        things: &str,
        same: impl Fn(&str) -> Result<()>,
    ) -> Result<()> {
        let blind = format!("could not look at {things}");
        for (call, fault, said) in [
            (look, "throttle", "too many requests"),
            ("*", "credentials", "credentials"),
            (look, "error", "ServerException"),
            (look, "garbage", &blind),
            (look, "drop", &blind),
        ] {
            let fault = json!({"call": call, "do": fault});
            self.rules(json!([fault]))?;
            until(&format!("the word of {fault}"), BOUND, || {
                let record = record(server)?;
                Ok((record["Observed"]["State"] == "Unknown" && record.to_string().contains(said)).then_some(()))
            })?;
            self.rules(json!([]))?;
            same(&fault.to_string())?;
        }
        Ok(())
    }
}
