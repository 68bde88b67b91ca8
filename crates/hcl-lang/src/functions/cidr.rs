//! Arithmetic on network prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use num_traits::{Signed, ToPrimitive};

use super::signature::{Args, CallError, Outcome, fail, fail_arg};
use crate::value::Value;

/// A prefix with its host bits cleared.
#[derive(Clone, Copy)]
struct Prefix {
    bits: u128,
    len: u32,
    /// 32 or 128.
    width: u32,
}

impl Prefix {
    fn parse(text: &str) -> Result<Prefix, CallError> {
        let bad = || fail_arg(0, format!("{text:?} is not a prefix such as 10.0.0.0/8"));
        let Some((address, len)) = text.split_once('/') else {
            return bad();
        };
        let (Ok(address), Ok(len)) = (address.parse::<IpAddr>(), len.parse::<u32>()) else {
            return bad();
        };
        let (bits, width) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
            IpAddr::V6(v6) => (u128::from(v6), 128),
        };
        if len > width {
            return bad();
        }
        let mut prefix = Prefix { bits, len, width };
        prefix.bits &= prefix.mask();
        Ok(prefix)
    }

    /// Ones where the network is.
    fn mask(self) -> u128 {
        let all = if self.width == 32 { u128::from(u32::MAX) } else { u128::MAX };
        all & !low_bits(self.width - self.len)
    }

    fn address(self, bits: u128) -> IpAddr {
        if self.width == 32 { IpAddr::V4(Ipv4Addr::from(bits as u32)) } else { IpAddr::V6(Ipv6Addr::from(bits)) }
    }

    fn text(self) -> String {
        format!("{}/{}", self.address(self.bits), self.len)
    }

    /// The prefix `added` bits longer with number `number`.
    fn subnet(self, added: u32, number: u128) -> Option<Prefix> {
        let len = self.len.checked_add(added).filter(|len| *len <= self.width)?;
        if added < 128 && number >> added != 0 {
            return None;
        }
        let shift = self.width - len;
        let bits = if shift >= 128 { self.bits } else { self.bits | (number << shift) };
        Some(Prefix { bits, len, ..self })
    }
}

fn low_bits(count: u32) -> u128 {
    if count >= 128 { u128::MAX } else { (1u128 << count) - 1 }
}

fn bits(a: &Args<'_>, i: usize) -> Result<u32, CallError> {
    match u32::try_from(a.int(i)?) {
        Ok(bits) => Ok(bits),
        Err(_) => fail_arg(i, "the number of bits must not be negative"),
    }
}

pub(super) fn host(a: &Args<'_>) -> Outcome {
    let prefix = Prefix::parse(a.text(0))?;
    let Some(number) = a.number(1).as_bigint() else {
        return fail_arg(1, "a whole number is required");
    };
    let size = low_bits(prefix.width - prefix.len);
    // A negative number counts from the end.
    let host = match number.abs().to_u128() {
        Some(n) if number.is_negative() && n >= 1 && n - 1 <= size => size - (n - 1),
        Some(n) if !number.is_negative() && n <= size => n,
        _ => {
            return fail_arg(1, format!("prefix of {} does not have a host with number {number}", prefix.len));
        }
    };
    Ok(Value::String(prefix.address(prefix.bits | host).to_string()))
}

pub(super) fn netmask(a: &Args<'_>) -> Outcome {
    let prefix = Prefix::parse(a.text(0))?;
    Ok(Value::String(prefix.address(prefix.mask()).to_string()))
}

pub(super) fn subnet(a: &Args<'_>) -> Outcome {
    let prefix = Prefix::parse(a.text(0))?;
    let added = bits(a, 1)?;
    let Some(number) = a.number(2).as_bigint().and_then(|n| n.to_u128()) else {
        return fail_arg(2, "a whole number that is not negative is required");
    };
    match prefix.subnet(added, number) {
        Some(subnet) => Ok(Value::String(subnet.text())),
        None => fail(format!("{} has no {number}. network with {added} more bits", a.text(0))),
    }
}

pub(super) fn subnets(a: &Args<'_>) -> Outcome {
    let prefix = Prefix::parse(a.text(0))?;
    let mut out = Vec::new();
    let last = prefix.bits | low_bits(prefix.width - prefix.len);
    // The first address not yet given away; nothing when the space is used up.
    let mut next = Some(prefix.bits);
    for i in 1..a.len() {
        let added = bits(a, i)?;
        if added < 1 {
            return fail_arg(i, "must extend the prefix by at least one bit");
        }
        let len = match prefix.len.checked_add(added) {
            Some(len) if len <= prefix.width => len,
            _ => return fail_arg(i, format!("a prefix has at most {} bits", prefix.width)),
        };
        let block = low_bits(prefix.width - len);
        let start = next.and_then(|n| if n & block == 0 { Some(n) } else { (n | block).checked_add(1) });
        let Some(start) = start.filter(|s| *s <= last && (*s | block) <= last) else {
            return fail_arg(i, "not enough addresses are left for this network");
        };
        out.push(Prefix { bits: start, len, ..prefix }.text());
        next = (start | block).checked_add(1);
    }
    Ok(Value::strings(out))
}
