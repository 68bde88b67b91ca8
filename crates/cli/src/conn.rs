//! The connection of commands to an agent: the API client with the flags of the command line, and a few short ways to
//! ask.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use api::{
    call::{Call, Raw},
    client::{Answer, ApiClient, BodyStream, ClientOptions, ExecSocket, Frames},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{commands::format::Format, help::CONNECTION, output};

/// How long a blocking query of a command waits for a change.
const WAIT: Duration = Duration::from_secs(30);

/// How to reach the API. Flags win over `DROVER_*`, which win over `NOMAD_*`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ApiArgs {
    /// Address of the agent [env: DROVER_ADDR, NOMAD_ADDR] [default: http://127.0.0.1:4646]
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "URL")]
    pub(crate) address: Option<String>,
    /// Region of the request [env: DROVER_REGION, NOMAD_REGION]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) region: Option<String>,
    /// Namespace of the request; `*` lists all namespaces [env: DROVER_NAMESPACE, NOMAD_NAMESPACE]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) namespace: Option<String>,
    /// Secret ID of an access token [env: DROVER_TOKEN, NOMAD_TOKEN]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) token: Option<String>,
    /// File with the certificate authorities of the agents [env: DROVER_CACERT, NOMAD_CACERT]
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "FILE")]
    pub(crate) ca_cert: Option<String>,
    /// Directory of such files [env: DROVER_CAPATH, NOMAD_CAPATH]
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "DIR")]
    pub(crate) ca_path: Option<String>,
    /// Certificate to show to the agent [env: DROVER_CLIENT_CERT, NOMAD_CLIENT_CERT]
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "FILE")]
    pub(crate) client_cert: Option<String>,
    /// Private key of -client-cert [env: DROVER_CLIENT_KEY, NOMAD_CLIENT_KEY]
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "FILE")]
    pub(crate) client_key: Option<String>,
    /// Name in the agent's certificate, if not the host of the address [env: DROVER_TLS_SERVER_NAME,
    /// NOMAD_TLS_SERVER_NAME]
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// Accept any certificate: the agent may be anybody [env: DROVER_SKIP_VERIFY, NOMAD_SKIP_VERIFY]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) tls_skip_verify: bool,
    /// Print without colours [env: DROVER_CLI_NO_COLOR, NOMAD_CLI_NO_COLOR, NO_COLOR]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) no_color: bool,
    /// Print with colours, even if the output is no terminal [env: DROVER_CLI_FORCE_COLOR, NOMAD_CLI_FORCE_COLOR]
    #[arg(long, global = true, help_heading = CONNECTION, conflicts_with = "no_color")]
    pub(crate) force_color: bool,
}

impl ApiArgs {
    /// Opens the connection (nothing is sent yet).
    ///
    /// # Errors
    /// When the address cannot be understood.
    pub(crate) fn conn(&self) -> Result<Conn> {
        if self.no_color || self.force_color {
            output::set_colour(self.force_color);
        }
        Conn::open(self)
    }
}

/// ` -namespace NAME` for a command that the person is told to type; empty where the command reaches that namespace
/// without it.
pub(crate) fn namespace_flag(namespace: &str) -> String {
    flag_beside(namespace, &ClientOptions::from_env().namespace)
}

/// The same beside the namespace that the environment names.
fn flag_beside(namespace: &str, of_environment: &str) -> String {
    let named = |name: &str| if name.is_empty() { "default".to_owned() } else { name.to_owned() };
    let namespace = named(namespace);
    if namespace == "default" && named(of_environment) == "default" {
        String::new()
    } else {
        format!(" -namespace {namespace}")
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Conn(ApiClient);

impl Conn {
    /// As the flags say, else the environment, else the default.
    pub(crate) fn open(args: &ApiArgs) -> Result<Self> {
        let mut options = ClientOptions::from_env();
        for (slot, flag) in [
            (&mut options.address, &args.address),
            (&mut options.region, &args.region),
            (&mut options.namespace, &args.namespace),
            (&mut options.token, &args.token),
        ] {
            if let Some(value) = flag {
                slot.clone_from(value);
            }
        }
        for (slot, flag) in [
            (&mut options.tls.ca_cert, &args.ca_cert),
            (&mut options.tls.ca_path, &args.ca_path),
            (&mut options.tls.client_cert, &args.client_cert),
            (&mut options.tls.client_key, &args.client_key),
        ] {
            if let Some(value) = flag {
                *slot = value.into();
            }
        }
        if let Some(name) = &args.tls_server_name {
            options.tls.server_name.clone_from(name);
        }
        options.tls.skip_verify |= args.tls_skip_verify;
        Ok(Self(ApiClient::new(options)?))
    }
    /// The agent's address.
    pub(crate) fn address(&self) -> String {
        self.0.address().to_string()
    }
    /// To an address, whatever the environment says, with the certificates of an agent.
    pub(crate) fn to(address: &str, tls: Option<tls::Dialer>, token: Option<String>) -> Result<Self> {
        let token = token.unwrap_or_default();
        let options = ClientOptions { address: address.to_owned(), token, ..ClientOptions::default() };
        Ok(Self(ApiClient::with_dialer(options, tls)?))
    }
    /// Asks.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call<T>) -> Result<T> {
        Ok(self.0.call(call).await?.value)
    }
    /// Asks, and waits for a change after `index`; 0 answers at once. Returns the value and its index.
    pub(crate) async fn ask_at<T: DeserializeOwned>(&self, call: Call<T>, index: u64) -> Result<(T, u64)> {
        self.ask_within(call, index, WAIT).await
    }
    /// The same; it answers after `wait` also when nothing has changed.
    pub(crate) async fn ask_within<T: DeserializeOwned>(
        &self,
        call: Call<T>,
        index: u64,
        wait: Duration,
    ) -> Result<(T, u64)> {
        let answer = self.0.call(call.after(index, wait)).await?;
        Ok((answer.value, answer.meta.index))
    }
    /// Asks for a page of a list; also where the next one begins.
    pub(crate) async fn page<T: DeserializeOwned>(&self, call: Call<Vec<T>>) -> Result<(Vec<T>, String)> {
        let answer = self.0.call(call).await?;
        Ok((answer.value, answer.meta.next_token))
    }
    /// The same with all that the headers say.
    pub(crate) async fn answer<T: DeserializeOwned>(&self, call: Call<T>) -> Result<Answer<T>> {
        Ok(self.0.call(call).await?)
    }
    /// The namespace of requests: as the flags say, else the environment, else `default`.
    pub(crate) fn namespace(&self) -> &str {
        Some(self.0.options().namespace.as_str()).filter(|namespace| !namespace.is_empty()).unwrap_or("default")
    }
    /// The same connection with requests about this namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        Self(self.0.with_namespace(namespace))
    }
    /// Asks, and does not look at the answer.
    pub(crate) async fn tell<T>(&self, call: Call<T>) -> Result<()> {
        self.bytes(call).await.map(drop)
    }
    /// Prints the answer as the flags say.
    pub(crate) async fn show<T>(&self, format: &Format, call: Call<T>) -> Result<ExitCode> {
        format.print(&self.ask::<Value>(call.reading()).await?)?;
        Ok(ExitCode::SUCCESS)
    }
    /// Prints the answer as the agent's JSON.
    pub(crate) async fn print<T>(&self, call: Call<T>) -> Result<ExitCode> {
        output::json(&self.ask::<Value>(call.reading()).await?)?;
        Ok(ExitCode::SUCCESS)
    }
    /// The answer as text.
    pub(crate) async fn text<T>(&self, call: Call<T>) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(call).await?).into_owned())
    }
    /// The bytes of the answer.
    pub(crate) async fn bytes<T>(&self, call: Call<T>) -> Result<Vec<u8>> {
        Ok(self.0.call_raw(call).await?.value.to_vec())
    }
    /// An answer that goes on, as raw bytes.
    pub(crate) async fn stream(&self, call: Call<Raw>) -> Result<BodyStream> {
        Ok(self.0.stream(call.path(), call.options()).await?)
    }
    /// An answer of log or file frames.
    pub(crate) async fn frames(&self, call: Call<Raw>) -> Result<Frames> {
        Ok(self.stream(call).await?.frames())
    }
    /// A command beside a task.
    pub(crate) async fn exec(&self, call: Call<Raw>) -> Result<ExecSocket> {
        Ok(self.0.exec(call.path(), call.options()).await?)
    }
    /// Any method on any path with further headers; the answer as it is, whatever its status.
    pub(crate) async fn exchange(
        &self,
        method: &http::Method,
        path: &str,
        headers: &http::HeaderMap,
        body: Vec<u8>,
    ) -> Result<http::Response<BodyStream>> {
        Ok(self.0.exchange(method.clone(), path, headers, body.into()).await?)
    }
    /// The agent's address, and the path with region and namespace.
    pub(crate) fn target(&self, path: &str) -> (String, String) {
        (self.0.address().to_string(), self.0.target(path))
    }
    /// Whether there is a token.
    pub(crate) fn token(&self) -> Option<&str> {
        Some(self.0.options().token.as_str()).filter(|token| !token.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::{ApiArgs, Conn, flag_beside};

    #[test]
    fn commands_to_type_name_the_namespace_that_they_would_miss() {
        for (namespace, of_environment, flag) in [
            ("", "", ""),
            ("default", "", ""),
            ("default", "default", ""),
            ("prod", "", " -namespace prod"),
            ("prod", "prod", " -namespace prod"),
            ("default", "prod", " -namespace default"),
        ] {
            assert_eq!(flag_beside(namespace, of_environment), flag, "{namespace:?} {of_environment:?}");
        }
    }

    #[test]
    fn a_connection_is_about_another_namespace() {
        let args = ApiArgs { namespace: Some("*".to_owned()), ..ApiArgs::default() };
        let conn = Conn::open(&args).expect("a connection");
        assert_eq!((conn.namespace(), conn.in_namespace("prod").namespace()), ("*", "prod"));
    }
}
