//! `drover volume create|register|delete|status|init|claim`: dynamic host volumes.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use api::{
    call, go_json,
    shapes::{HostVolumeRequest, HostVolumeStub},
};
use model::{Allocation, DynamicVolume, VolumeClaim, VolumeState};
use serde_json::{Value, json};

use super::{
    ApiArgs, Page, Shape, alloc_table, confirm, find_by_prefix,
    resolve::node,
    spec_file::{self, Fields, Kind},
};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// What a file of a volume may say.
const FIELDS: Fields = &[
    ("type", "Type", Kind::Text),
    ("id", "ID", Kind::Text),
    ("name", "Name", Kind::Text),
    ("namespace", "Namespace", Kind::Text),
    ("plugin_id", "PluginID", Kind::Text),
    ("node_id", "NodeID", Kind::Text),
    ("node_pool", "NodePool", Kind::Text),
    ("host_path", "HostPath", Kind::Text),
    ("capacity", "CapacityBytes", Kind::Bytes),
    ("capacity_min", "RequestedCapacityMinBytes", Kind::Bytes),
    ("capacity_max", "RequestedCapacityMaxBytes", Kind::Bytes),
    (
        "capability",
        "RequestedCapabilities",
        Kind::Blocks(&[("access_mode", "AccessMode", Kind::Text), ("attachment_mode", "AttachmentMode", Kind::Text)]),
    ),
    (
        "constraint",
        "Constraints",
        Kind::Blocks(&[
            ("attribute", "LTarget", Kind::Text),
            ("operator", "Operand", Kind::Text),
            ("value", "RTarget", Kind::Text),
        ]),
    ),
    ("parameters", "Parameters", Kind::Map),
];

/// The example.
const EXAMPLE: &str = r#"# A directory that a node makes for jobs. A group asks for it with
#   volume "data" { type = "host", source = "data" }
name      = "data"
type      = "host"
plugin_id = "mkdir"

# The servers choose a node. These narrow the choice:
# node_id   = "…"
# node_pool = "default"
constraint {
  attribute = "${attr.kernel.name}"
  value     = "linux"
}

# How jobs may use it; this is the default.
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

# For the plugin.
parameters {
  mode = "0750"
}
"#;

/// The same as JSON.
const EXAMPLE_JSON: &str = r#"{
  "name": "data",
  "type": "host",
  "plugin_id": "mkdir",
  "constraint": [
    {
      "attribute": "${attr.kernel.name}",
      "value": "linux"
    }
  ],
  "capability": [
    {
      "access_mode": "single-node-writer",
      "attachment_mode": "file-system"
    }
  ],
  "parameters": [
    {
      "mode": "0750"
    }
  ]
}
"#;

/// Types of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Type {
    Host,
    Csi,
}

/// The type of volumes that a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct OfType {
    /// Type of the volumes; there are no CSI volumes in this release
    #[arg(long, default_value = "host")]
    r#type: Type,
}

impl OfType {
    fn check(&self) -> Result<()> {
        match self.r#type {
            Type::Host => Ok(()),
            Type::Csi => bail!("there are no CSI volumes in this release: use volumes of type host"),
        }
    }
}

/// What creation and registration take.
#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Change the volume with this id
    #[arg(long)]
    id: Option<String>,
    /// Without effect, see `absent`
    #[arg(long, hide = true)]
    policy_override: bool,
    /// Without effect, see `absent`
    #[arg(long, hide = true)]
    detach: bool,
    /// Without effect, see `absent`
    #[arg(long, hide = true)]
    verbose: bool,
    /// The file; `-` reads standard input
    file: String,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a host volume on a node
    ///
    /// A plugin of the node makes it. `drover volume init` writes an example of the file.
    Create(PutArgs),
    /// Register a host volume that is there already
    ///
    /// The file names its node and its path there. No plugin makes or removes it.
    Register(PutArgs),
    /// Delete a host volume, with what is in it
    ///
    /// A registered volume is forgotten and stays where it is.
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        of: OfType,
        /// Forget a volume whose node is down or unknown; what is on that node stays
        #[arg(long)]
        force: bool,
        /// Id of the volume, or its beginning
        volume: String,
    },
    /// List the host volumes, or show one
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        of: OfType,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        shape: Shape,
        /// Only the volumes of this node, by id, beginning of an id, or name
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Only the volumes of this node pool
        #[arg(long, value_name = "POOL")]
        node_pool: Option<String>,
        /// Leave out the allocations
        #[arg(long)]
        short: bool,
        /// Id of a volume, or its beginning
        volume: Option<String>,
    },
    /// Write an example of a volume's file
    Init {
        #[command(flatten)]
        of: OfType,
        /// Write JSON instead of HCL
        #[arg(long)]
        json: bool,
        /// The new file (default: `volume.hcl` or `volume.json`)
        file: Option<String>,
    },
    /// Work with the claims of groups on volumes
    #[command(subcommand)]
    Claim(Claim),
}

/// Verbs of claims.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Claim {
    /// List the claims of sticky groups
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        shape: Shape,
        /// Only the claims of this job
        #[arg(long, value_name = "JOB")]
        job: Option<String>,
        /// Only the claims of this group
        #[arg(long, value_name = "GROUP")]
        group: Option<String>,
        /// Only the claims on volumes of this name
        #[arg(long, value_name = "NAME")]
        volume_name: Option<String>,
    },
    /// Delete a claim: its group may take another volume
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Id of the claim, or its beginning
        claim: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Create(args) => put(args, false).await,
        Command::Register(args) => put(args, true).await,
        Command::Delete { api, of, force, volume } => {
            of.check()?;
            let conn = api.conn()?;
            let volume = find(&conn, &volume).await?;
            let id = volume.id;
            let call = call::host_volume_delete(id).in_namespace(&volume.namespace);
            conn.tell(if force { call.with("force", true) } else { call }).await?;
            output::line(&format!("Successfully deleted volume \"{id}\"!"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { api, of, page, shape, node, node_pool, short, volume } => {
            of.check()?;
            let conn = api.conn()?;
            if let Some(volume) = volume {
                return show(&conn, &volume, &shape, short).await;
            }
            let node = match node {
                Some(text) => Some(self::node(&conn, &text).await?.id),
                None => None,
            };
            let list = call::volumes().with("type", "host").with_some("node_id", node);
            list_rows(&conn, &page, &shape, list.with_some("node_pool", node_pool.as_deref())).await
        }
        Command::Init { of, json, file } => {
            of.check()?;
            let (default, text) = if json { ("volume.json", EXAMPLE_JSON) } else { ("volume.hcl", EXAMPLE) };
            let file = file.unwrap_or_else(|| default.to_owned());
            spec_file::write_new(&file, text)?;
            output::line(&format!("Example volume specification written to {file}"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Claim(Claim::List { api, page, shape, job, group, volume_name }) => {
            let conn = api.conn()?;
            let list = call::volume_claims().with_some("job_id", job.as_deref());
            let list = list.with_some("task_group", group.as_deref()).with_some("volume_name", volume_name.as_deref());
            if shape.format.wanted() {
                Page::rest(&page.show(&conn, &shape.format, list).await?);
                return Ok(ExitCode::SUCCESS);
            }
            let (claims, next) = page.of::<VolumeClaim>(&conn, list).await?;
            if claims.is_empty() {
                output::line("No volume claims");
            } else {
                claim_table(&claims, &shape).print();
            }
            Page::rest(&next);
            Ok(ExitCode::SUCCESS)
        }
        Command::Claim(Claim::Delete { api, yes, claim }) => {
            let conn = api.conn()?;
            let whole = Shape::default();
            let table = |claims: Vec<VolumeClaim>| claim_table(&claims, &whole);
            let found =
                find_by_prefix(&conn, call::volume_claims(), &claim, "claim", |c| c.id.to_string(), table).await?;
            let (job, name, id) = (&found.job_id, &found.volume_name, found.id);
            if !yes && !confirm(&format!("Delete the claim of job {job} on volume {name:?}?"))? {
                return Ok(ExitCode::FAILURE);
            }
            conn.tell(call::volume_claim_delete(id).in_namespace(&found.namespace)).await?;
            output::line(&format!("Successfully deleted claim \"{id}\"!"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The volume in a file, in the API's form.
fn in_file(path: &str) -> Result<Value> {
    let mut volume = spec_file::read(path, false, FIELDS)?;
    match volume["Type"].as_str() {
        Some("host") => {}
        Some("csi") => bail!("there are no CSI volumes in this release: write type = \"host\""),
        Some(other) => bail!("no volumes have type {other:?}: write type = \"host\""),
        None => bail!("the file says no type: write type = \"host\""),
    }
    if let Value::Object(fields) = &mut volume {
        fields.remove("Type");
    }
    Ok(volume)
}

async fn put(args: PutArgs, registered: bool) -> Result<ExitCode> {
    let mut volume = in_file(&args.file)?;
    if let Some(id) = &args.id {
        volume["ID"] = id.as_str().into();
    }
    let conn = args.api.conn()?;
    let nothing = HostVolumeRequest::default();
    let call = if registered { call::host_volume_register(&nothing) } else { call::host_volume_create(&nothing) };
    let answer = conn.ask(call.carrying(&json!({ "Volume": volume }))).await?;
    let volume = answer.volume.context("the server's answer has no volume")?;
    if !answer.warnings.is_empty() {
        output::note(&format!("Warning: {}", answer.warnings));
    }
    let done = if registered { "Registered" } else { "Created" };
    // Scripts take the last word for the id.
    output::line(&format!("==> {done} host volume {} with ID {}", volume.name, volume.id));
    Ok(if volume.state == VolumeState::Ready { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

async fn find(conn: &Conn, volume: &str) -> Result<HostVolumeStub> {
    let table = |volumes: Vec<HostVolumeStub>| volume_table(&volumes, &Shape::default());
    find_by_prefix(conn, call::volumes().with("type", "host"), volume, "volume", |v| v.id.to_string(), table).await
}

async fn list_rows(conn: &Conn, page: &Page, shape: &Shape, list: api::Call<Vec<HostVolumeStub>>) -> Result<ExitCode> {
    if shape.format.wanted() {
        Page::rest(&page.show(conn, &shape.format, list).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let (volumes, next) = page.of::<HostVolumeStub>(conn, list).await?;
    // Scripts look for it.
    output::heading("Dynamic Host Volumes");
    if volumes.is_empty() {
        output::line("No dynamic host volumes");
    } else {
        volume_table(&volumes, shape).print();
    }
    Page::rest(&next);
    Ok(ExitCode::SUCCESS)
}

fn volume_table(volumes: &[HostVolumeStub], shape: &Shape) -> Table {
    let mut table = Table::new(["ID", "Name", "Namespace", "Plugin ID", "Node ID", "Node Pool", "State"]);
    for v in volumes {
        let plugin = if v.plugin_id.is_empty() { "<none>" } else { &v.plugin_id };
        table.row([
            shape.id(v.id),
            v.name.clone(),
            v.namespace.to_string(),
            plugin.to_owned(),
            shape.id(v.node_id),
            v.node_pool.clone(),
            lower(&v.state),
        ]);
    }
    table
}

fn claim_table(claims: &[VolumeClaim], shape: &Shape) -> Table {
    let mut table = Table::new(["ID", "Namespace", "Job", "Group", "Volume Name", "Volume ID", "Allocation"]);
    for c in claims {
        table.row([
            shape.id(c.id),
            c.namespace.to_string(),
            c.job_id.to_string(),
            c.task_group_name.clone(),
            c.volume_name.clone(),
            shape.id(c.volume_id),
            shape.id(c.alloc_id),
        ]);
    }
    table
}

/// Shows a volume.
pub(crate) async fn show(conn: &Conn, volume: &str, shape: &Shape, short: bool) -> Result<ExitCode> {
    let found = find(conn, volume).await?;
    let call = call::host_volume(found.id).in_namespace(&found.namespace);
    if shape.format.wanted() {
        return conn.show(&shape.format, call).await;
    }
    let value = conn.ask(call.reading::<Value>()).await?;
    let allocs: Vec<Allocation> = go_json::from_value(value["Allocations"].clone()).unwrap_or_default();
    let volume: DynamicVolume = go_json::from_value(value).context("the server's answer is no volume")?;
    let bytes = |bytes: i64| match u64::try_from(bytes) {
        Ok(bytes) if bytes > 0 => output::size(bytes),
        _ => String::new(),
    };
    let mut rows = vec![
        ("ID", volume.id.to_string()),
        ("Name", volume.name.clone()),
        ("Namespace", volume.namespace.to_string()),
        ("Plugin ID", volume.plugin_id.clone()),
        ("Node ID", volume.node_id.to_string()),
        ("Node Pool", volume.node_pool.clone()),
        ("Capacity", bytes(volume.capacity_bytes)),
        ("State", lower(&volume.state)),
        ("Host Path", volume.host_path.clone()),
        ("Created", when::stamp(volume.create_time)),
    ];
    if volume.deleting {
        rows.push(("Deleting", "its node has not removed it yet".to_owned()));
    }
    if !volume.error.is_empty() {
        rows.push(("Error", volume.error.clone()));
    }
    output::pairs(&rows);
    output::heading("Capabilities");
    let mut table = Table::new(["Access Mode", "Attachment Mode"]);
    for capability in &volume.requested_capabilities {
        table.row([&*capability.access_mode, &capability.attachment_mode]);
    }
    table.print();
    if !volume.parameters.is_empty() {
        output::heading("Parameters");
        let rows: Vec<(&str, &str)> = volume.parameters.iter().map(|(name, value)| (&**name, &**value)).collect();
        output::pairs(&rows);
    }
    if !short {
        output::heading("Allocations");
        match allocs.as_slice() {
            [] => output::line("No allocations use the volume"),
            allocs => alloc_table::table(allocs, shape).print(),
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_becomes_a_volume_of_the_api() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("v.hcl").display().to_string();
        std::fs::write(&path, format!("{EXAMPLE}\ncapacity_max = \"10GiB\"\ncapability {{\n  access_mode = \"x\"\n}}"))
            .expect("write");
        let read = in_file(&path).expect("a volume");
        let volume: DynamicVolume = go_json::from_value(read).expect("of the API");
        assert_eq!((&*volume.name, &*volume.plugin_id), ("data", "mkdir"));
        assert_eq!(volume.requested_capacity_max_bytes, 10 << 30);
        let modes: Vec<_> = volume.requested_capabilities.iter().map(|c| c.access_mode.as_str()).collect();
        assert_eq!(modes, ["single-node-writer", "x"]);
        assert_eq!((volume.constraints.len(), volume.parameters["mode"].as_str()), (1, "0750"));
        for (text, says) in [("name = \"a\"", "no type"), ("type = \"csi\"", "no CSI"), ("type = \"x\"", "\"x\"")] {
            std::fs::write(&path, text).expect("write");
            let said = in_file(&path).expect_err(text).to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}
