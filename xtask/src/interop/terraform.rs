//! The acceptance tests of the Terraform provider for Nomad, unedited, with a real Terraform, against an agent whose
//! ACLs are on.

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    cluster::Agent,
    stock_suites::{Place, Results, judge},
};
use crate::{
    local::{BOUND, until},
    packages::{self, Skip},
    peer,
    process::Run,
};

/// Names a checkout of the provider: no registry of modules has it.
const SOURCE: &str = "TERRAFORM_PROVIDER_SOURCE";
/// Of the token that the tests use.
const SECRET: &str = "00000000-0000-0000-0000-000000000000";
/// Limit of all tests: some wait for the pace of deployments.
const LIMIT: Duration = Duration::from_secs(1_500);

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let Some(source) = env::var_os(SOURCE).map(PathBuf::from) else {
        return Err(Skip::because(format!(
            "{SOURCE} is not set: let it name a checkout of github.com/hashicorp/terraform-provider-nomad"
        ))
        .into());
    };
    let terraform = peer::terraform()?;
    let agent = Agent::start("terraform", &[], "acl {\n  enabled = true\n}\n")?;
    let first = json!({"BootstrapSecret": SECRET});
    until("the first token", BOUND, || agent.put("/v1/acl/bootstrap", &first).map(Some))?;
    until("a ready node", BOUND, || {
        let nodes: Value = ureq::get(format!("{}/v1/nodes", agent.address()))
            .header("X-Nomad-Token", SECRET)
            .call()?
            .body_mut()
            .read_json()?;
        Ok((nodes[0]["Status"] == "ready").then_some(()))
    })?;
    let place = Place::new("terraform")?;
    let tests = place.path("provider.test");
    let build =
        ["test", "-c", "-o"].map(std::ffi::OsStr::new).into_iter().chain([tests.as_os_str(), "./nomad".as_ref()]);
    Run::new(packages::go()?, build).dir(&source).run_patiently()?;
    let (address, terraform) = (agent.address(), terraform.to_str().context("a path that is no text")?);
    let settings = [
        ("TF_ACC", "1"),
        ("TF_ACC_TERRAFORM_PATH", terraform),
        ("CHECKPOINT_DISABLE", "1"),
        ("NOMAD_ADDR", &*address),
        ("NOMAD_TOKEN", SECRET),
    ];
    let events = place.run(&tests, &source.join("nomad"), &[], &settings, LIMIT)?;
    let mut results = Results::default();
    results.read(&events, "")?;
    judge(&results, "terraform-provider.txt", 100)
}
