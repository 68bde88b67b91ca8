//! The connection of commands to an agent: the API client with the flags of the command line, and a few short ways to ask.

use std::time::Duration;

use anyhow::Result;
use api::client::{ApiClient, BodyStream, ClientOptions, ExecSocket, Frames, RequestOptions};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{commands::ApiArgs, output};

/// How long a blocking query of a command waits for a change.
const WAIT: Duration = Duration::from_secs(30);

/// A part of a path or query, percent-encoded.
pub(crate) fn encode(text: &str) -> String {
    api::query::percent_encode(text)
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
        Ok(Self(ApiClient::new(options)?))
    }
    /// To an address, whatever the environment says.
    pub(crate) fn to(address: &str) -> Result<Self> {
        Ok(Self(ApiClient::new(ClientOptions { address: address.to_owned(), ..ClientOptions::default() })?))
    }
    /// GET.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        Ok(self.0.get(path).await?)
    }
    /// GET that waits for a change after `index`; 0 answers at once. Returns the value and its index.
    pub(crate) async fn get_at<T: DeserializeOwned>(&self, path: &str, index: u64) -> Result<(T, u64)> {
        self.get_within(path, index, WAIT).await
    }
    /// The same; it answers after `wait` also when nothing has changed.
    pub(crate) async fn get_within<T: DeserializeOwned>(&self, path: &str, index: u64, wait: Duration) -> Result<(T, u64)> {
        let options = if index == 0 { RequestOptions::default() } else { RequestOptions::after(index, wait) };
        let answer = self.0.query(path, &options).await?;
        Ok((answer.value, answer.meta.index))
    }
    /// GET of a page of a list; also where the next one begins.
    pub(crate) async fn page<T: DeserializeOwned>(&self, path: &str) -> Result<(Vec<T>, String)> {
        let answer = self.0.query(path, &RequestOptions::default()).await?;
        Ok((answer.value, answer.meta.next_token))
    }
    /// GET, printed as the agent's JSON.
    pub(crate) async fn print(&self, path: &str) -> Result<std::process::ExitCode> {
        output::json(&self.get::<Value>(path).await?)?;
        Ok(std::process::ExitCode::SUCCESS)
    }
    /// GET as text.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let answer = self.0.get_bytes(path, &RequestOptions::default()).await?;
        Ok(String::from_utf8_lossy(&answer.value).into_owned())
    }
    /// Any method on any path; the answer as it is.
    pub(crate) async fn raw(&self, method: &str, path: &str, body: Vec<u8>) -> Result<Vec<u8>> {
        let method = http::Method::from_bytes(method.as_bytes()).map_err(|_| anyhow::anyhow!("{method:?} is not an HTTP method"))?;
        Ok(self.0.raw(method, path, body.into()).await?.value.to_vec())
    }
    /// PUT.
    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        Ok(self.0.put(path, body).await?)
    }
    /// PUT whose answer is empty.
    pub(crate) async fn put_empty(&self, path: &str) -> Result<()> {
        self.0.put_no_answer(path, &json!({}), &RequestOptions::default()).await?;
        Ok(())
    }
    /// DELETE.
    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        Ok(self.0.delete(path, &RequestOptions::default()).await?.value)
    }
    /// GET of an answer that goes on, as raw bytes.
    pub(crate) async fn stream(&self, path: &str) -> Result<BodyStream> {
        Ok(self.0.stream(path, &RequestOptions::default()).await?)
    }
    /// A command beside a task.
    pub(crate) async fn exec(&self, path: &str, options: &RequestOptions) -> Result<ExecSocket> {
        Ok(self.0.exec(path, options).await?)
    }
    /// GET of log or file frames.
    pub(crate) async fn frames(&self, path: &str) -> Result<Frames> {
        Ok(self.stream(path).await?.frames())
    }
}
