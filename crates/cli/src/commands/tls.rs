//! `drover tls ca|cert create|info`: certificates of agents and of people.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use ::tls::{
    Certificate,
    issue::{self, Authority, Leaf, Pair, Subject},
};
use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;

use crate::output;

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Work with certificate authorities
    #[command(subcommand)]
    Ca(Ca),
    /// Work with certificates of servers, nodes and people
    #[command(subcommand)]
    Cert(Cert),
}

/// Verbs of `tls ca`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Ca {
    /// Make a certificate authority in the working directory
    Create(Box<CreateCa>),
    /// Show a certificate authority
    Info(Info),
}

/// Verbs of `tls cert`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Cert {
    /// Make a certificate in the working directory
    Create(Box<CreateCert>),
    /// Show a certificate
    Info(Info),
}

/// Flags of `tls ca create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateCa {
    /// Further domain for which the authority may sign; needs -name-constraint, may be repeated
    #[arg(long, value_name = "DOMAIN", requires = "name_constraint")]
    additional_domain: Vec<String>,
    /// Common name of the authority [default: Drover Agent CA and its serial number]
    #[arg(long, value_name = "NAME")]
    common_name: Option<String>,
    /// Country, two letters
    #[arg(long)]
    country: Option<String>,
    /// Days that the authority is valid
    #[arg(long, default_value_t = 1825, value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
    /// Domain of the agents, also the beginning of the files' names
    #[arg(long, default_value = "nomad")]
    domain: String,
    /// Locality
    #[arg(long)]
    locality: Option<String>,
    /// Let the authority sign for -domain, localhost, nomad and -additional-domain only
    #[arg(long)]
    name_constraint: bool,
    /// Organization
    #[arg(long)]
    organization: Option<String>,
    /// Organizational unit
    #[arg(long)]
    organizational_unit: Option<String>,
    /// Postal code
    #[arg(long)]
    postal_code: Option<String>,
    /// Province or state
    #[arg(long)]
    province: Option<String>,
    /// Street address
    #[arg(long)]
    street_address: Option<String>,
}

/// Flags of `tls cert create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateCert {
    /// Further DNS name; may be repeated
    #[arg(long, value_name = "NAME")]
    additional_dnsname: Vec<String>,
    /// Further IP address; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    additional_ipaddress: Vec<IpAddr>,
    /// Certificate of the authority [default: DOMAIN-agent-ca.pem]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Make the certificate of a person
    #[arg(long)]
    cli: bool,
    /// Make the certificate of a node
    #[arg(long)]
    client: bool,
    /// Days that the certificate is valid
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
    /// Domain of the agents
    #[arg(long, default_value = "nomad")]
    domain: String,
    /// Private key of the authority [default: DOMAIN-agent-ca-key.pem]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Region of the agent
    #[arg(long, alias = "cluster-region", default_value = "global")]
    region: String,
    /// Make the certificate of a server
    #[arg(long)]
    server: bool,
}

/// A file to show.
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The file with the certificate
    file: PathBuf,
}

/// Runs a verb.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Ca(Ca::Create(args)) => create_ca(&args)?,
        Command::Cert(Cert::Create(args)) => create_cert(&args)?,
        Command::Ca(Ca::Info(info)) => show(&info.file, true)?,
        Command::Cert(Cert::Info(info)) => show(&info.file, false)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn create_ca(args: &CreateCa) -> Result<()> {
    let text = |given: &Option<String>| given.clone().unwrap_or_default();
    let mut permitted_domains = Vec::new();
    if args.name_constraint {
        permitted_domains.extend([args.domain.clone(), "localhost".to_owned(), "nomad".to_owned()]);
        permitted_domains.extend(args.additional_domain.iter().cloned());
        permitted_domains.sort();
        permitted_domains.dedup();
    }
    let wanted = Authority {
        common_name: text(&args.common_name),
        days: args.days,
        permitted_domains,
        subject: Subject {
            country: text(&args.country),
            postal_code: text(&args.postal_code),
            province: text(&args.province),
            locality: text(&args.locality),
            street_address: text(&args.street_address),
            organization: text(&args.organization),
            organizational_unit: text(&args.organizational_unit),
        },
    };
    let made = issue::authority(&wanted, SystemTime::now())?;
    save("CA certificate", &format!("{}-agent-ca", args.domain), &made)
}

fn create_cert(args: &CreateCert) -> Result<()> {
    let role = match (args.server, args.client, args.cli) {
        (true, false, false) => "server",
        (false, true, false) => "client",
        (false, false, true) => "cli",
        _ => bail!("give one of -server, -client and -cli: it says whose certificate this is"),
    };
    let name = |domain: &str| format!("{role}.{}.{domain}", args.region);
    // Agents look for the names below `nomad`, whatever the domain is.
    let mut dns_names = vec![name("nomad"), "localhost".to_owned()];
    dns_names.extend(args.additional_dnsname.iter().cloned());
    let loopback = [IpAddr::from([127, 0, 0, 1])].into_iter().filter(|_| role != "cli");
    let wanted = Leaf {
        name: name(&args.domain),
        days: args.days,
        dns_names,
        ip_addresses: loopback.chain(args.additional_ipaddress.iter().copied()).collect(),
    };
    let ca = args.ca.clone().unwrap_or_else(|| format!("{}-agent-ca.pem", args.domain).into());
    let key = args.key.clone().unwrap_or_else(|| format!("{}-agent-ca-key.pem", args.domain).into());
    let made = issue::leaf(&wanted, &ca, &key, SystemTime::now())
        .context("no certificate was made; `drover tls ca create` makes an authority")?;
    if role == "server" {
        output::note(
            "==> Who holds this certificate and its key can act as a server of the cluster: keep the key on the server",
        );
    }
    save("Certificate", &format!("{}-{role}-{}", args.region, args.domain), &made)
}

/// Writes both files, or none.
fn save(what: &str, name: &str, made: &Pair) -> Result<()> {
    let (certificate, key) = (PathBuf::from(format!("{name}.pem")), PathBuf::from(format!("{name}-key.pem")));
    for path in [&certificate, &key] {
        if path.exists() {
            return Err(taken(path));
        }
    }
    let write = |path: &Path, text: &str, secret| {
        issue::write_new(path, text, secret).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => taken(path),
            _ => anyhow::Error::new(e).context(format!("{} could not be written", path.display())),
        })
    };
    write(&key, &made.key, true)?;
    write(&certificate, &made.certificate, false)?;
    output::line(&format!("==> {what} saved to {}", certificate.display()));
    output::line(&format!("==> {what} key saved to {}", key.display()));
    Ok(())
}

fn taken(path: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} exists and is not overwritten: move it away, or work in another directory", path.display())
}

fn show(path: &Path, authority: bool) -> Result<()> {
    let facts = Certificate::of_file(path)?;
    if authority && !facts.authority {
        bail!("{} is not the certificate of an authority; `drover tls cert info` shows it", path.display());
    }
    let stamp = |time: SystemTime| {
        Timestamp::try_from(time).map(|t| t.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()).unwrap_or_default()
    };
    let mut rows = vec![
        ("Serial Number", facts.serial.clone()),
        ("Issuer CN", facts.issuer.clone()),
        ("Common Name", facts.common_name.clone()),
        ("Valid From", stamp(facts.not_before)),
        ("Expiry Date", stamp(facts.not_after)),
    ];
    if authority {
        rows.push(("Permitted DNS Domains", facts.permitted_domains.join(", ")));
    } else {
        rows.push(("DNS Names", facts.dns_names.join(", ")));
        let addresses: Vec<String> = facts.ip_addresses.iter().map(ToString::to_string).collect();
        rows.push(("IP Addresses", addresses.join(", ")));
    }
    rows.retain(|(_, value)| !value.is_empty());
    output::pairs(&rows);
    if facts.not_after < SystemTime::now() {
        output::note("The certificate has expired.");
    }
    Ok(())
}
