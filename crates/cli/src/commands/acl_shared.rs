//! What the commands of access control share: how they print, and how they read secrets and values of flags.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use api::call::Call;
use model::{GoTime, Secret};
use serde::Serialize;
use serde_json::Value;

use super::{Format, spec_file};
use crate::{
    conn::Conn,
    output::{self, Table},
    when,
};

/// The secret that a file holds, or standard input for `-`.
///
/// # Errors
/// When it cannot be read, or holds nothing.
pub(super) fn secret_in(path: &str) -> Result<Secret> {
    let (name, text) = spec_file::text_of(path)?;
    match text.trim() {
        "" => bail!("{name} holds no secret; it must be a UUID"),
        secret => Ok(secret.into()),
    }
}

/// Prints an object as the flags say, else as text.
pub(super) fn print<T: Serialize>(format: &Format, value: &T, text: impl FnOnce(&T)) -> Result<ExitCode> {
    if format.wanted() {
        format.print(value)?
    } else {
        text(value)
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a list as the flags say, else as columns: headers and the fields under them.
pub(super) async fn list<T>(
    conn: &Conn,
    call: Call<Vec<T>>,
    format: &Format,
    columns: &[(&str, &str)],
    nothing: &str,
) -> Result<ExitCode> {
    let rows: Vec<Value> = conn.ask(call.reading()).await?;
    print(format, &rows, |rows| {
        let mut table = Table::new(columns.iter().map(|(header, _)| *header));
        for row in rows {
            table.row(columns.iter().map(|(_, field)| super::cell(&row[*field])));
        }
        if table.is_empty() { output::line(nothing) } else { table.print() }
    })
}

/// A time of the API.
pub(super) fn time(time: &GoTime) -> String {
    if time.is_unset() { String::new() } else { when::whole(&time.to_string()) }
}

/// A value of a flag: itself, the content of a file for `@FILE`, standard input for `-`.
///
/// # Errors
/// When it cannot be read.
pub(super) fn text_of_flag(value: &str) -> Result<String> {
    match value.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("could not read {path:?}")),
        None if value == "-" => Ok(spec_file::text_of("-")?.1),
        None => Ok(value.to_owned()),
    }
}
