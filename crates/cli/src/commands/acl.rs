//! `drover acl`: its groups, `bootstrap` and `explain`.

use std::process::ExitCode;

use anyhow::Result;
use api::{
    call,
    shapes::{AclBootstrapRequest, AclExplainRequest, AclExplanation},
};

use super::{
    ApiArgs, Format,
    acl_shared::{print, secret_in},
};
use crate::{
    output::{self, Table},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Work with methods to log in
    #[command(subcommand)]
    AuthMethod(super::acl_auth_method::Command),
    /// Work with the rules that say what logins may do
    #[command(subcommand)]
    BindingRule(super::acl_binding_rule::Command),
    /// Make the first token of a cluster, which may do everything
    ///
    /// It works once. The secret is shown now and never again.
    Bootstrap {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// File with the secret of the token, a UUID; `-` reads standard input; default: the servers make one
        file: Option<String>,
    },
    /// Say which rule of a token's policies allows or denies a request
    ///
    /// Nothing of the request is carried out. Exit code 1: the token may not do it.
    Explain {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Secret of the token in question, when it is not the one of -token; needs a management token
        #[arg(long, value_name = "SECRET")]
        of: Option<String>,
        /// Method of the request
        method: String,
        /// Its path with its query, such as `/v1/jobs?namespace=dev`
        path: String,
    },
    /// Work with policies
    #[command(subcommand)]
    Policy(super::acl_policy::Command),
    /// Work with roles
    #[command(subcommand)]
    Role(super::acl_role::Command),
    /// Work with tokens
    #[command(subcommand)]
    Token(super::acl_token::Command),
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::AuthMethod(command) => super::acl_auth_method::run(command).await,
        Command::BindingRule(command) => super::acl_binding_rule::run(command).await,
        Command::Bootstrap { api, format, file } => {
            let secret = file.as_deref().map(secret_in).transpose()?.unwrap_or_default();
            let request = AclBootstrapRequest { bootstrap_secret: secret };
            let token = api.conn()?.ask(call::acl_bootstrap(&request)).await?;
            print(&format, &token, |token| super::acl_token::show(token, when::now_ns()))
        }
        Command::Explain { api, format, of, method, path } => {
            let request = AclExplainRequest { method, path: api_path(&path), token: of.unwrap_or_default() };
            let said = api.conn()?.ask(call::acl_explain(&request)).await?;
            let allowed = said.allowed;
            print(&format, &said, |said| explained(&request, said).iter().for_each(|line| output::line(line)))?;
            Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Policy(command) => super::acl_policy::run(command).await,
        Command::Role(command) => super::acl_role::run(command).await,
        Command::Token(command) => super::acl_token::run(command).await,
    }
}

/// A path of the API as people write it, with or without its beginning.
fn api_path(path: &str) -> String {
    match path.trim_start_matches('/') {
        rest if rest.starts_with("v1/") || rest.starts_with('.') || rest.starts_with("ui") => format!("/{rest}"),
        rest => format!("/v1/{rest}"),
    }
}

/// The explanation as lines.
fn explained(request: &AclExplainRequest, said: &AclExplanation) -> Vec<String> {
    let verdict = if said.allowed { "allowed" } else { "denied" };
    let mut lines = output::pair_lines(&[
        ("Request", format!("{} {}", request.method.to_ascii_uppercase(), request.path)),
        ("Endpoint", said.endpoint.clone()),
        ("Needs", said.needs.clone()),
        ("Result", verdict.to_owned()),
    ]);
    if !said.rules.is_empty() {
        let mut table = Table::new(["Need", "Result", "Why"]);
        for rule in &said.rules {
            let result = if rule.allowed { "allowed" } else { "denied" };
            table.row([rule.need.clone(), result.to_owned(), rule.why.clone()]);
        }
        lines.extend([String::new(), output::bold("Rules")]);
        lines.extend(table.render());
    }
    if !said.depends.is_empty() {
        lines.extend([String::new(), format!("The request itself decides the rest: {}", said.depends)]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use api::shapes::AclRule;

    use super::*;

    #[test]
    fn an_explanation_names_each_rule() {
        let request =
            AclExplainRequest { method: "get".into(), path: api_path("jobs?namespace=dev"), ..Default::default() };
        let rule = |need: &str, allowed, why: &str| AclRule { need: need.into(), allowed, why: why.into() };
        let said = AclExplanation {
            endpoint: "/v1/jobs".into(),
            needs: "`list-jobs` in the namespace".into(),
            rules: vec![rule("list-jobs in dev", false, "policy \"p\": namespace \"*\" denies")],
            depends: "the body".into(),
            ..AclExplanation::default()
        };
        assert_eq!(
            explained(&request, &said),
            [
                "Request  = GET /v1/jobs?namespace=dev",
                "Endpoint = /v1/jobs",
                "Needs    = `list-jobs` in the namespace",
                "Result   = denied",
                "",
                "Rules",
                "Need              Result  Why",
                "list-jobs in dev  denied  policy \"p\": namespace \"*\" denies",
                "",
                "The request itself decides the rest: the body",
            ]
        );
        let said = AclExplanation { allowed: true, rules: Vec::new(), depends: String::new(), ..said };
        assert_eq!(explained(&request, &said)[3..], ["Result   = allowed"]);
    }

    #[test]
    fn paths_may_be_short() {
        for (typed, path) in [
            ("jobs", "/v1/jobs"),
            ("/v1/jobs", "/v1/jobs"),
            ("v1/vars?prefix=a", "/v1/vars?prefix=a"),
            ("/ui/", "/ui/"),
        ] {
            assert_eq!(api_path(typed), path);
        }
    }
}
