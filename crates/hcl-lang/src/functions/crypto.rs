//! Hashes and ids.

use md5::Digest;

use super::signature::{Args, Outcome, fail, fail_arg};
use crate::value::Value;

/// Costs from which one call takes more than about a second are refused.
const BCRYPT_COST_MAX: i64 = 14;

fn hex(bytes: &[u8]) -> Outcome {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        out.push_str(&format!("{byte:02x}"));
    }
    Ok(Value::String(out))
}

pub(super) fn md5(a: &Args<'_>) -> Outcome {
    hex(&md5::Md5::digest(a.text(0)))
}

pub(super) fn sha1(a: &Args<'_>) -> Outcome {
    hex(&sha1::Sha1::digest(a.text(0)))
}

pub(super) fn sha256(a: &Args<'_>) -> Outcome {
    hex(&sha2::Sha256::digest(a.text(0)))
}

pub(super) fn sha512(a: &Args<'_>) -> Outcome {
    hex(&sha2::Sha512::digest(a.text(0)))
}

pub(super) fn bcrypt(a: &Args<'_>) -> Outcome {
    let cost = match a.len() {
        1 => 10,
        2 => a.int(1)?,
        _ => return fail("takes no more than two arguments"),
    };
    if !(4..=BCRYPT_COST_MAX).contains(&cost) {
        return fail_arg(1, format!("the cost must be from 4 to {BCRYPT_COST_MAX}"));
    }
    // One hash of cost 10 stands for a good part of what a file may spend.
    a.charge(1 << (cost + 11))?;
    match bcrypt::hash_with_salt(a.text(0), cost as u32, a.host.random()) {
        Ok(parts) => Ok(Value::String(parts.format_for_version(bcrypt::Version::TwoA))),
        Err(e) => fail_arg(0, format!("cannot hash: {e}")),
    }
}

pub(super) fn uuidv4(a: &Args<'_>) -> Outcome {
    let id = uuid::Builder::from_random_bytes(a.host.random()).into_uuid();
    Ok(Value::String(id.to_string()))
}

pub(super) fn uuidv5(a: &Args<'_>) -> Outcome {
    let namespace = match a.text(0) {
        "dns" => uuid::Uuid::NAMESPACE_DNS,
        "url" => uuid::Uuid::NAMESPACE_URL,
        "oid" => uuid::Uuid::NAMESPACE_OID,
        "x500" => uuid::Uuid::NAMESPACE_X500,
        other => match uuid::Uuid::parse_str(other) {
            Ok(id) => id,
            Err(_) => {
                return fail_arg(0, "the namespace must be dns, url, oid, x500 or a UUID");
            }
        },
    };
    Ok(Value::String(uuid::Uuid::new_v5(&namespace, a.text(1).as_bytes()).to_string()))
}
