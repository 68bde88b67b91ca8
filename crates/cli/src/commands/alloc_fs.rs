//! `drover alloc fs`: the files of an allocation.

use std::process::ExitCode;

use anyhow::{Error, Result, bail};
use api::{
    call::{self, Call, Raw},
    client::ClientError,
    shapes::FileInfo,
};

use super::{
    ApiArgs,
    alloc_follow::last_lines,
    resolve::{Intent, Operand, allocation},
};
use crate::{
    conn::Conn,
    output::{self, Table},
    when,
};

/// Bytes that a line is taken to have at most, when lines of the end are asked for.
const LINE: u64 = 120;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Print sizes in bytes
    #[arg(short = 'H', long)]
    machine: bool,
    /// Print facts about the file instead of its contents
    #[arg(long)]
    stat: bool,
    /// Follow the file as it grows
    #[arg(short)]
    follow: bool,
    /// Print only the end
    #[arg(long)]
    tail: bool,
    /// Without effect, see `absent`
    #[arg(long, hide = true)]
    verbose: bool,
    /// Number of lines to print from the end
    #[arg(short, value_name = "LINES", conflicts_with = "c")]
    n: Option<u64>,
    /// Number of bytes to print from the end
    #[arg(short, value_name = "BYTES")]
    c: Option<u64>,
    /// Treat the operand as a job name and choose one of the job's allocations
    #[arg(long)]
    job: bool,
    /// Choose an allocation of this task group
    #[arg(long)]
    group: Option<String>,
    /// An allocation id or its prefix, or a job name for the job's newest running allocation
    #[arg(value_name = "ALLOC|JOB")]
    id: String,
    /// Path below the allocation's directory
    #[arg(default_value = "/")]
    path: String,
}

/// Runs the verb.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let operand = Operand { text: &args.id, job: args.job, group: args.group.as_deref(), intent: Intent::Read };
    let alloc = allocation(&conn, operand).await?;
    let files = |operation: &str| call::alloc_files(operation, alloc.id).with("path", &args.path);
    let told = |e: Error| explained(e, &args.path, &alloc.id.short());
    let info: FileInfo = conn.ask(files("stat").reading()).await.map_err(told)?;
    if args.stat {
        table(&[info], args.machine).print();
        return Ok(ExitCode::SUCCESS);
    }
    if info.is_dir {
        if args.follow || args.tail || args.n.is_some() || args.c.is_some() {
            bail!("{} is a directory: it has no end to show, and nothing to follow", args.path);
        }
        let files: Vec<FileInfo> = conn.ask(files("ls").reading()).await.map_err(told)?;
        table(&files, args.machine).print();
        return Ok(ExitCode::SUCCESS);
    }
    let stream = |origin: &str, offset: u64, follow: bool| {
        files("stream").with("origin", origin).with("offset", offset).with("follow", follow)
    };
    let lines = if args.tail && args.c.is_none() { Some(args.n.unwrap_or(10)) } else { args.n };
    let Some(lines) = lines else {
        let (origin, offset) = args.c.map_or(("start", 0), |c| ("end", c));
        copy(&conn, stream(origin, offset, args.follow)).await.map_err(told)?;
        return Ok(ExitCode::SUCCESS);
    };
    // The end is asked for generously, twice as much until it has the lines or is the whole file.
    let size = u64::try_from(info.size).unwrap_or(0);
    let mut bytes = lines.saturating_mul(LINE).max(LINE);
    let (text, end) = loop {
        let mut text = Vec::new();
        let mut end = size;
        let mut frames = conn.frames(stream("end", bytes, false)).await.map_err(told)?;
        while let Some(frame) = frames.next().await? {
            text.extend_from_slice(&frame.data);
            end = u64::try_from(frame.offset).unwrap_or(end);
        }
        if bytes >= size || text.iter().filter(|b| **b == b'\n').count() as u64 > lines {
            break (text, end);
        }
        bytes = bytes.saturating_mul(2);
    };
    output::bytes(last_lines(&text, lines));
    if args.follow {
        copy(&conn, stream("start", end, true)).await.map_err(told)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn copy(conn: &Conn, stream: Call<Raw>) -> Result<()> {
    let mut frames = conn.frames(stream).await?;
    while let Some(frame) = frames.next().await? {
        output::bytes(&frame.data);
    }
    Ok(())
}

/// The node's error about a file, with the file's name as it was typed. Everything else stays as it is.
fn explained(error: Error, path: &str, alloc: &dyn std::fmt::Display) -> Error {
    let message = error.downcast_ref::<ClientError>().map(ClientError::message).unwrap_or_default();
    if message.contains("No such file or directory") {
        let path = if path == "/" { "its directory".to_owned() } else { format!("{path:?}") };
        return anyhow::anyhow!(
            "allocation {alloc} has no file {path} on its node\n`drover alloc fs {alloc}` lists what it has; remote \
                tasks have their files where they run."
        );
    }
    error
}

fn table(files: &[FileInfo], machine: bool) -> Table {
    // Only a look at one file tells what is in it.
    let typed = files.iter().any(|f| !f.content_type.is_empty());
    let kind: &[&str] = if typed { &["Content Type"] } else { &[] };
    let mut table = Table::new([&["Mode", "Size", "Modified Time"], kind, &["Name"]].concat());
    for f in files {
        let size = u64::try_from(f.size).unwrap_or(0);
        let size = if machine { size.to_string() } else { output::size(size) };
        let facts = [f.file_mode.clone(), size, when::whole(&f.mod_time)];
        let name = format!("{}{}", f.name, if f.is_dir { "/" } else { "" });
        table.row(facts.into_iter().chain(typed.then(|| f.content_type.clone())).chain([name]));
    }
    table
}

#[cfg(test)]
mod tests {
    use api::client::ClientError;
    use http::StatusCode;

    use super::explained;

    #[test]
    fn a_missing_file_is_told_by_its_name() {
        let error = |message: &str| {
            let status = ClientError::Status { status: StatusCode::INTERNAL_SERVER_ERROR, message: message.into() };
            explained(status.into(), "web/local/x", &"4f2a0000").to_string()
        };
        let missing = error("open web/local/x: No such file or directory (os error 2)");
        assert!(missing.starts_with("allocation 4f2a0000 has no file \"web/local/x\" on its node\n"), "{missing}");
        assert!(error("Path escapes the alloc directory").contains("escapes"));
    }
}
