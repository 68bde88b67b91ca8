//! `drover acl token create|list|info|self|update|delete`.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use api::call;
use model::{AclToken, AclTokenRole, GoDuration};

use super::{ApiArgs, Format, acl_shared};
use crate::{
    output::{self, Table},
    when,
};

/// What a token may do.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Rights {
    /// Name for people
    #[arg(long)]
    name: Option<String>,
    /// `client`, which may do what its policies and roles say, or `management`, which may do everything
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Name of a policy; repeatable
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// Id of a role; repeatable
    #[arg(long = "role-id", value_name = "ID")]
    role_ids: Vec<String>,
    /// Name of a role; repeatable
    #[arg(long = "role-name", value_name = "NAME")]
    role_names: Vec<String>,
}

impl Rights {
    /// Puts what was given into a token: lists replace the token's.
    fn apply(self, token: &mut AclToken) {
        let roles = roles(&self.role_names, &self.role_ids);
        if let Some(name) = self.name {
            token.name = name;
        }
        if let Some(kind) = self.kind {
            token.kind = kind;
        }
        if !self.policies.is_empty() {
            token.policies = self.policies;
        }
        if !roles.is_empty() {
            token.roles = roles;
        }
    }
}

/// Arguments of `acl token create`.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    rights: Rights,
    /// Mark the token as one for all regions
    #[arg(long)]
    global: bool,
    /// How long the token is valid, such as `8h`; default: for ever
    #[arg(long, value_name = "DURATION")]
    ttl: Option<GoDuration>,
    /// Accessor ID of a token whose secret is in FILE
    #[arg(long, value_name = "UUID", requires = "file")]
    accessor: Option<String>,
    /// File with the secret of the token, a UUID; `-` reads standard input; default: the servers make both
    #[arg(requires = "accessor")]
    file: Option<String>,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a token
    Create(Create),
    /// Delete a token: its secret is good for nothing from then on
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Accessor ID of the token
        accessor: String,
    },
    /// Show a token
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Accessor ID of the token
        accessor: String,
    },
    /// List the tokens, without their secrets
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Show the token that the command uses
    #[command(name = "self")]
    Own {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Change a token; what no flag names keeps its value
    Update {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        #[command(flatten)]
        rights: Rights,
        /// As with Nomad: must be what the token was created with, which cannot change
        #[arg(long)]
        global: bool,
        /// Accessor ID of the token
        accessor: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let now = when::now_ns();
    match command {
        Command::Create(args) => {
            let (api, format) = (args.api.clone(), args.format.clone());
            let token = created(args)?;
            let token = api.conn()?.ask(call::acl_token_put(&token)).await?;
            acl_shared::print(&format, &token, |token| show(token, now))
        }
        Command::Delete { api, accessor } => {
            api.conn()?.tell(call::acl_token_delete(&accessor)).await?;
            output::line(&format!("Token {accessor} successfully deleted"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Info { api, format, accessor } => {
            let token = api.conn()?.ask(call::acl_token(accessor)).await?;
            acl_shared::print(&format, &token, |token| show(token, now))
        }
        Command::List { api, format } => {
            let conn = api.conn()?;
            if format.wanted() {
                return conn.show(&format, call::acl_tokens()).await;
            }
            let tokens: Vec<AclToken> = conn.ask(call::acl_tokens().reading()).await?;
            let table = table(&tokens, now);
            if table.is_empty() {
                output::line("No tokens found")
            } else {
                table.print()
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Own { api, format } => {
            let token = api.conn()?.ask(call::acl_token_self()).await?;
            acl_shared::print(&format, &token, |token| show(token, now))
        }
        Command::Update { api, format, rights, global, accessor } => {
            let conn = api.conn()?;
            let mut token = conn.ask(call::acl_token(&accessor)).await?;
            ensure!(!global || token.global, "a token cannot become global: create another one");
            rights.apply(&mut token);
            let token = conn.ask(call::acl_token_update(&accessor, &token)).await?;
            acl_shared::print(&format, &token, |token| show(token, now))
        }
    }
}

/// The token that the arguments describe.
fn created(args: Create) -> Result<AclToken> {
    let mut token = AclToken {
        accessor_id: args.accessor.unwrap_or_default().into(),
        secret_id: args.file.as_deref().map(acl_shared::secret_in).transpose()?.unwrap_or_default(),
        kind: model::acl::token_type::CLIENT.to_owned(),
        global: args.global,
        expiration_ttl: args.ttl.unwrap_or_default(),
        ..AclToken::default()
    };
    args.rights.apply(&mut token);
    Ok(token)
}

/// Links to roles, each once.
fn roles(names: &[String], ids: &[String]) -> Vec<AclTokenRole> {
    let mut roles: Vec<AclTokenRole> = Vec::new();
    let named = names.iter().map(|name| AclTokenRole { name: name.clone(), ..AclTokenRole::default() });
    let by_id = ids.iter().map(|id| AclTokenRole { id: id.as_str().into(), ..AclTokenRole::default() });
    for role in named.chain(by_id) {
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
    roles
}

fn table(tokens: &[AclToken], now: i64) -> Table {
    let mut table = Table::new(["Name", "Type", "Global", "Accessor ID", "Expired"]);
    for token in tokens {
        table.row([
            token.name.clone(),
            token.kind.clone(),
            token.global.to_string(),
            token.accessor_id.to_string(),
            token.expired(now).to_string(),
        ]);
    }
    table
}

/// Prints a token with its secret.
pub(super) fn show(token: &AclToken, now: i64) {
    lines(token, now).iter().for_each(|line| output::line(line));
}

fn lines(token: &AclToken, now: i64) -> Vec<String> {
    let expiry = match (acl_shared::time(&token.expiration_time), token.expired(now)) {
        (at, true) => format!("{at} (expired)"),
        (at, false) => at,
    };
    let mut rows = vec![
        ("Accessor ID", token.accessor_id.to_string()),
        ("Secret ID", token.secret_id.reveal().to_owned()),
        ("Name", token.name.clone()),
        ("Type", token.kind.clone()),
        ("Global", token.global.to_string()),
        ("Create Time", acl_shared::time(&token.create_time)),
        ("Expiry Time", expiry),
        ("Create Index", token.create_index.to_string()),
        ("Modify Index", token.modify_index.to_string()),
    ];
    if token.management() {
        rows.extend([("Policies", "n/a".to_owned()), ("Roles", "n/a".to_owned())]);
        return output::pair_lines(&rows);
    }
    rows.push(("Policies", format!("[{}]", token.policies.join(" "))));
    let mut lines = output::pair_lines(&rows);
    lines.extend([String::new(), output::bold("Roles")]);
    if token.roles.is_empty() {
        lines.push("<none>".to_owned());
    } else {
        let mut table = Table::new(["ID", "Name"]);
        token.roles.iter().for_each(|role| table.row([role.id.to_string(), role.name.clone()]));
        lines.extend(table.render());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_with_what_it_may_do() {
        let token = AclToken {
            accessor_id: "a".into(),
            secret_id: "s".into(),
            kind: "client".to_owned(),
            policies: vec!["p".to_owned(), "q".to_owned()],
            roles: vec![AclTokenRole { id: "r".into(), name: "ops".to_owned() }],
            create_time: 1_700_000_000_000_000_001.into(),
            expiration_time: 1_700_003_600_000_000_000.into(),
            ..AclToken::default()
        };
        assert_eq!(
            lines(&token, 0),
            [
                "Accessor ID  = a",
                "Secret ID    = s",
                "Name         = <none>",
                "Type         = client",
                "Global       = false",
                "Create Time  = 2023-11-14T22:13:20Z",
                "Expiry Time  = 2023-11-14T23:13:20Z",
                "Create Index = 0",
                "Modify Index = 0",
                "Policies     = [p q]",
                "",
                "Roles",
                "ID  Name",
                "r   ops",
            ]
        );
        assert_eq!(lines(&token, i64::MAX)[6], "Expiry Time  = 2023-11-14T23:13:20Z (expired)");
        assert!(table(std::slice::from_ref(&token), i64::MAX).render()[1].ends_with("true"));
        let all = AclToken { kind: "management".to_owned(), expiration_time: Default::default(), ..token };
        assert_eq!(lines(&all, i64::MAX)[6], "Expiry Time  = <none>");
        assert_eq!(lines(&all, 0)[9..], ["Policies     = n/a", "Roles        = n/a"]);
    }

    #[test]
    fn what_no_flag_names_stays() {
        let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let links = roles(&text(&["ops", "ops"]), &text(&["1"]));
        assert_eq!(links.iter().map(|role| (&*role.id, &*role.name)).collect::<Vec<_>>(), [("", "ops"), ("1", "")]);
        let mut token =
            AclToken { name: "n".into(), policies: text(&["p"]), roles: links.clone(), ..AclToken::default() };
        Rights { policies: text(&["q"]), ..Rights::default() }.apply(&mut token);
        assert_eq!((&*token.name, &token.policies, &token.roles), ("n", &text(&["q"]), &links));
        Rights { name: Some("m".into()), role_ids: text(&["2"]), ..Rights::default() }.apply(&mut token);
        assert_eq!((&*token.name, &*token.roles[0].id, token.roles.len()), ("m", "2", 1));
    }
}
