//! Objects of S3 and its likes: one signed GET (AWS signature version 4).

use std::{collections::BTreeMap, fs::File};

use aws_lc_rs::{digest, hmac};
use serde::{Deserialize, Serialize};

use crate::{
    error::FetchError,
    hashing::hex,
    http::{Request, download},
    source::SourceError,
    uri::{Uri, decode_path, encode},
};

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// `https` or `http`.
    pub scheme: String,
    /// With its port.
    pub authority: String,
    /// Path of the request, encoded once.
    pub path: String,
    /// The object's key.
    pub key: String,
    /// Region that signs.
    pub region: String,
    /// Version of the object; empty = the newest.
    pub version: String,
    /// Keys of the job; `None` = those in the environment, or an unsigned request.
    pub credentials: Option<Credentials>,
}

/// Keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Names the key.
    pub id: String,
    /// The key.
    pub secret: String,
    /// Of temporary keys; empty = none.
    pub token: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("id", &self.id).finish_non_exhaustive()
    }
}

const DEFAULT_REGION: &str = "us-east-1";

/// Reads the address of an object, options included.
pub(crate) fn object(uri: &mut Uri) -> Result<Object, SourceError> {
    let wrong = |why: &str| {
        SourceError::Combination(format!("the S3 address {}://{}{}: {why}", uri.scheme, uri.host(), uri.path))
    };
    if !matches!(uri.scheme.as_str(), "http" | "https") {
        return Err(wrong("it must be http or https"));
    }
    let path = decode_path(&uri.path);
    let aws = uri.host().strip_suffix(".amazonaws.com.cn").or_else(|| uri.host().strip_suffix(".amazonaws.com"));
    // `s3`, `s3-REGION`, `s3.REGION`, and the same behind `BUCKET.`.
    let (bucket_in_host, region_in_host) = match aws.map(|host| host.split('.').collect::<Vec<_>>()) {
        None => (false, None),
        Some(parts) => match parts.as_slice() {
            [s3] | [s3, ..] if *s3 == "s3" || s3.starts_with("s3-") => {
                (false, s3.strip_prefix("s3-").or(parts.get(1).copied()).map(str::to_owned))
            }
            [.., s3] if *s3 == "s3" || s3.starts_with("s3-") => (true, s3.strip_prefix("s3-").map(str::to_owned)),
            [.., s3, region] if *s3 == "s3" => (true, Some((*region).to_owned())),
            _ => return Err(wrong("it is no address of S3")),
        },
    };
    let below = path.trim_start_matches('/');
    let key = if bucket_in_host { below } else { below.split_once('/').map_or("", |(_, key)| key) };
    if key.is_empty() || key.ends_with('/') {
        return Err(wrong("it must name one object; whole prefixes are not fetched, make them an archive"));
    }
    let (key, path) = (key.to_owned(), format!("/{}", encode(below, true)));
    if uri.take("aws_profile").is_some_and(|p| !p.is_empty()) {
        return Err(SourceError::Option {
            name: "aws_profile",
            why: "profiles are not read; name the keys, or give them to the fetcher's environment".into(),
        });
    }
    let id = uri.take("aws_access_key_id").unwrap_or_default();
    let secret = uri.take("aws_access_key_secret").unwrap_or_default();
    let token = uri.take("aws_access_token").unwrap_or_default();
    if id.is_empty() != secret.is_empty() {
        return Err(SourceError::Option {
            name: "aws_access_key_id",
            why: "it goes together with aws_access_key_secret".into(),
        });
    }
    let region =
        uri.take("region").or(region_in_host).filter(|r| !r.is_empty()).unwrap_or_else(|| DEFAULT_REGION.to_owned());
    let version = uri.take("version").unwrap_or_default();
    if let Some((unknown, _)) = uri.query.first() {
        return Err(SourceError::Combination(format!("option {unknown:?} means nothing to S3")));
    }
    Ok(Object {
        scheme: uri.scheme.clone(),
        authority: uri.authority.clone(),
        path,
        key,
        region,
        version,
        credentials: (!id.is_empty()).then_some(Credentials { id, secret, token }),
    })
}

/// Fetches the object; `now` is when it is signed.
pub(crate) fn fetch(
    object: &Object,
    insecure: bool,
    max_bytes: u64,
    now: jiff::Timestamp,
    into: &mut File,
) -> Result<u64, FetchError> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let from_environment = || {
        let (id, secret) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"));
        (!id.is_empty() && !secret.is_empty()).then(|| Credentials { id, secret, token: variable("AWS_SESSION_TOKEN") })
    };
    let credentials = object.credentials.clone().or_else(from_environment);
    let query =
        if object.version.is_empty() { String::new() } else { format!("versionId={}", encode(&object.version, false)) };
    let headers = credentials.map(|c| sign(object, &query, &c, now)).unwrap_or_default();
    let mark = if query.is_empty() { "" } else { "?" };
    let url = format!("{}://{}{}{mark}{query}", object.scheme, object.authority, object.path);
    // A signature is for one host: a redirect means another region, and the job must name it.
    download(&Request { url: &url, headers: &headers, insecure, redirects: 0, max_bytes }, into)
}

/// Headers of a signed GET.
fn sign(object: &Object, query: &str, credentials: &Credentials, now: jiff::Timestamp) -> BTreeMap<String, String> {
    let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = time.get(..8).unwrap_or_default().to_owned();
    let default_port = if object.scheme == "https" { ":443" } else { ":80" };
    let host = object.authority.strip_suffix(default_port).unwrap_or(&object.authority);
    let nothing = sha256(b"");
    let mut headers = BTreeMap::from([
        ("host".to_owned(), host.to_owned()),
        ("x-amz-content-sha256".to_owned(), nothing.clone()),
        ("x-amz-date".to_owned(), time.clone()),
    ]);
    if !credentials.token.is_empty() {
        headers.insert("x-amz-security-token".to_owned(), credentials.token.clone());
    }
    let names = headers.keys().cloned().collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let canonical = format!("GET\n{}\n{query}\n{lines}\n{names}\n{nothing}", object.path);
    let scope = format!("{day}/{}/s3/aws4_request", object.region);
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(canonical.as_bytes()));
    let mut key = format!("AWS4{}", credentials.secret).into_bytes();
    for part in [day.as_str(), &object.region, "s3", "aws4_request", &to_sign] {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    headers.remove("host");
    let signature = hex(&key);
    let value =
        format!("AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", credentials.id);
    headers.insert("authorization".to_owned(), value);
    headers
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Object, SourceError> {
        object(&mut Uri::parse(text).expect("an address"))
    }

    #[test]
    fn addresses() {
        for (text, key, region, path) in [
            ("https://s3.amazonaws.com/bucket/a/b.zip", "a/b.zip", "us-east-1", "/bucket/a/b.zip"),
            ("https://s3-eu-west-1.amazonaws.com/bucket/a", "a", "eu-west-1", "/bucket/a"),
            ("https://s3.eu-west-1.amazonaws.com/bucket/a", "a", "eu-west-1", "/bucket/a"),
            ("https://bucket.s3.amazonaws.com/a%20b", "a b", "us-east-1", "/a%20b"),
            ("https://my.bucket.s3-eu-west-1.amazonaws.com/a", "a", "eu-west-1", "/a"),
            ("https://bucket.s3.eu-west-1.amazonaws.com/a", "a", "eu-west-1", "/a"),
            ("http://127.0.0.1:9000/bucket/a+b?region=x", "a+b", "x", "/bucket/a%2Bb"),
        ] {
            let object = parse(text).expect(text);
            assert_eq!(
                (object.key.as_str(), object.region.as_str(), object.path.as_str()),
                (key, region, path),
                "{text}"
            );
        }
        for wrong in [
            "https://s3.amazonaws.com/bucket",
            "https://s3.amazonaws.com/bucket/dir/",
            "https://ec2.amazonaws.com/a/b",
            "http://h/b/o?aws_access_key_id=x",
            "http://h/b/o?aws_profile=x",
            "http://h/b/o?other=x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    /// The published example of a signed GET of an object, without its Range header: computed by the same rules with an
    /// independent program.
    #[test]
    fn signatures_depend_on_everything_they_cover() {
        let object = parse("https://examplebucket.s3.amazonaws.com/test.txt").expect("an object");
        let credentials = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: String::new(),
        };
        let now: jiff::Timestamp = "2013-05-24T00:00:00Z".parse().expect("a time");
        let headers = sign(&object, "", &credentials, now);
        assert_eq!(headers["x-amz-date"], "20130524T000000Z");
        assert_eq!(
            headers["authorization"],
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
             Signature=df548e2ce037944d03f3e68682813b093763996d597cf890ca3d9037fd231eb4"
        );
    }
}
