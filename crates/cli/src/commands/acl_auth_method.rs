//! `drover acl auth-method create|list|info|update|delete`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use api::{call, go_json};
use model::{AclAuthMethod, AclAuthMethodConfig, GoDuration};

use super::{ApiArgs, Format, acl_shared};
use crate::output;

/// What a method says.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Said {
    /// `JWT` or `OIDC`
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// `local` or `global`: whether its tokens are marked as ones for all regions
    #[arg(long, value_name = "LOCALITY")]
    token_locality: Option<String>,
    /// Template of the names of its tokens, such as `${auth_method_type}-${value.user}`
    #[arg(long, value_name = "TEMPLATE")]
    token_name_format: Option<String>,
    /// How long its tokens are valid, such as `8h`
    #[arg(long, value_name = "DURATION")]
    max_token_ttl: Option<GoDuration>,
    /// Use the method for logins that name none
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    default: Option<bool>,
    /// How the identity provider is asked, as the API's JSON; `@FILE` reads a file, `-` standard input
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a method to log in
    Create {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Name of the method
        #[arg(long)]
        name: String,
        #[command(flatten)]
        said: Said,
    },
    /// Delete a method with its binding rules
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Name of the method
        name: String,
    },
    /// Show a method, without its secrets
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Name of the method
        name: String,
    },
    /// List the methods to log in
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Change a method; what no flag names keeps its value
    Update {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        #[command(flatten)]
        said: Said,
        /// Name of the method
        name: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Create { api, format, name, said } => {
            for (flag, missing) in [
                ("-type", said.kind.is_none()),
                ("-token-locality", said.token_locality.is_none()),
                ("-max-token-ttl", said.max_token_ttl.is_none()),
                ("-config", said.config.is_none()),
            ] {
                ensure!(!missing, "a method needs {flag}");
            }
            let method = applied(AclAuthMethod { name: name.as_str().into(), ..AclAuthMethod::default() }, said)?;
            acl_shared::print(&format, &api.conn()?.ask(call::acl_auth_method_put(&method)).await?, show)
        }
        Command::Delete { api, name } => {
            api.conn()?.tell(call::acl_auth_method_delete(&name)).await?;
            output::line(&format!("ACL auth method {name} successfully deleted"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Info { api, format, name } => {
            acl_shared::print(&format, &api.conn()?.ask(call::acl_auth_method(name)).await?, show)
        }
        Command::List { api, format } => {
            let columns = [("Name", "Name"), ("Type", "Type"), ("Default", "Default")];
            acl_shared::list(&api.conn()?, call::acl_auth_methods(), &format, &columns, "No ACL auth methods found")
                .await
        }
        Command::Update { api, format, said, name } => {
            let conn = api.conn()?;
            let before = conn.ask(call::acl_auth_method(&name)).await?;
            let method = applied(before.clone(), said)?;
            ensure!(method != before, "nothing to change; `drover help acl auth-method update` lists the flags");
            acl_shared::print(&format, &conn.ask(call::acl_auth_method_update(&name, &method)).await?, show)
        }
    }
}

/// A method with what the flags say.
fn applied(mut method: AclAuthMethod, said: Said) -> Result<AclAuthMethod> {
    if let Some(kind) = said.kind {
        method.kind = kind.to_ascii_uppercase();
    }
    for (field, given) in
        [(&mut method.token_locality, said.token_locality), (&mut method.token_name_format, said.token_name_format)]
    {
        if let Some(given) = given {
            *field = given;
        }
    }
    if let Some(ttl) = said.max_token_ttl {
        method.max_token_ttl = ttl;
    }
    if let Some(default) = said.default {
        method.default = default;
    }
    if let Some(config) = said.config {
        method.config = Some(config_of(&acl_shared::text_of_flag(&config)?)?);
    }
    Ok(method)
}

/// The configuration in a text. A field that there is none of is refused: what it was to restrict would stay open.
fn config_of(text: &str) -> Result<AclAuthMethodConfig> {
    let value: serde_json::Value =
        serde_json::from_str(text).context("-config is not JSON; to read a file, write @FILE")?;
    let known = serde_json::to_value(AclAuthMethodConfig::default()).context("the fields have no JSON form")?;
    let (Some(given), Some(known)) = (value.as_object(), known.as_object()) else {
        bail!("-config must be an object of JSON, it is {value}");
    };
    for field in given.keys() {
        if !known.keys().any(|known| known.eq_ignore_ascii_case(field)) {
            let near = hcl_lang::nearest(field, known.keys().map(String::as_str));
            let hint = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
            bail!("-config: there is no field {field:?}{hint}");
        }
    }
    go_json::from_value(value).context("-config does not describe a method")
}

fn show(method: &AclAuthMethod) {
    output::pairs(&[
        ("Name", method.name.to_string()),
        ("Type", method.kind.clone()),
        ("Locality", method.token_locality.clone()),
        ("Token Name Format", method.token_name_format.clone()),
        ("Max Token TTL", method.max_token_ttl.to_string()),
        ("Default", method.default.to_string()),
        ("Create Index", method.create_index.to_string()),
        ("Modify Index", method.modify_index.to_string()),
    ]);
    if let Some(config) = &method.config {
        output::heading("Auth Method Config");
        output::line("");
        output::pairs(&rows(config));
    }
}

fn rows(config: &AclAuthMethodConfig) -> Vec<(&'static str, String)> {
    let list = |all: &[String]| all.join(",");
    let map = |all: &std::collections::BTreeMap<String, String>| {
        all.iter().map(|(claim, name)| format!("{{{claim}: {name}}}")).collect::<Vec<_>>().join("; ")
    };
    vec![
        ("JWT Validation Public Keys", list(&config.jwt_validation_pub_keys)),
        ("JWKS URL", config.jwks_url.clone()),
        ("OIDC Discovery URL", config.oidc_discovery_url.clone()),
        ("OIDC Client ID", config.oidc_client_id.clone()),
        ("OIDC Client Secret", config.oidc_client_secret.reveal().to_owned()),
        ("OIDC Enable PKCE", config.oidc_enable_pkce.to_string()),
        ("OIDC Disable UserInfo", config.oidc_disable_user_info.to_string()),
        ("OIDC Scopes", list(&config.oidc_scopes)),
        ("Bound Audiences", list(&config.bound_audiences)),
        ("Bound Issuer", list(&config.bound_issuer)),
        ("Allowed Redirect URIs", list(&config.allowed_redirect_uris)),
        ("Signing Algorithms", list(&config.signing_algs)),
        ("Expiration Leeway", config.expiration_leeway.to_string()),
        ("Not Before Leeway", config.not_before_leeway.to_string()),
        ("Clock Skew Leeway", config.clock_skew_leeway.to_string()),
        ("Claim Mappings", map(&config.claim_mappings)),
        ("List Claim Mappings", map(&config.list_claim_mappings)),
        ("Verbose Logging", config.verbose_logging.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_change_what_they_name() {
        let said = Said { kind: Some("jwt".into()), max_token_ttl: Some(GoDuration::from_secs(60)), ..Said::default() };
        let method = applied(AclAuthMethod { token_locality: "local".into(), ..AclAuthMethod::default() }, said);
        let method = method.expect("a method");
        assert_eq!((&*method.kind, &*method.token_locality, method.default), ("JWT", "local", false));
        let config = r#"{"JWKSURL": "https://idp", "boundAudiences": ["a"], "ClaimMappings": {"sub": "user"}}"#;
        let said = Said { default: Some(true), config: Some(config.into()), ..Said::default() };
        let method = applied(method, said).expect("a method");
        let config = method.config.expect("a configuration");
        assert!(method.default && config.bound_audiences == ["a"]);
        assert!(rows(&config).contains(&("Claim Mappings", "{sub: user}".to_owned())));
    }

    #[test]
    fn a_misspelt_field_of_the_configuration_is_refused() {
        for (text, says) in [
            (r#"{"BoundAudience": ["a"]}"#, "there is no field \"BoundAudience\"; did you mean \"BoundAudiences\"?"),
            ("[]", "must be an object"),
            ("config.json", "write @FILE"),
        ] {
            let said = format!("{:#}", config_of(text).expect_err(text));
            assert!(said.contains(says), "{said}");
        }
    }
}
