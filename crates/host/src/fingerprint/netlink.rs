//! Interfaces and their addresses, asked from the kernel: one dump of links, one of addresses.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const RTM_NEWLINK: u16 = 16;
const RTM_GETADDR: u16 = 22;
const RTM_NEWADDR: u16 = 20;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

fn open() -> std::io::Result<OwnedFd> {
    // No protocol means number 0, which is the routing family (NETLINK_ROUTE).
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(std::time::Duration::from_secs(2)),
    )?;
    Ok(socket)
}

/// Sets an interface of the calling thread's network namespace up.
///
/// # Errors
/// The kernel's refusal, such as for want of rights, or no answer within 2 s.
pub fn bring_up(index: u32) -> std::io::Result<()> {
    const UP: u32 = 1;
    let socket = open()?;
    // nlmsghdr {len, type, flags = REQUEST|ACK, seq, pid} and ifinfomsg {family u8, pad u8, type u16, index, flags,
    // which flags}.
    let mut request = Vec::with_capacity(32);
    request.extend_from_slice(&32_u32.to_ne_bytes());
    request.extend_from_slice(&RTM_NEWLINK.to_ne_bytes());
    request.extend_from_slice(&0x5_u16.to_ne_bytes());
    request.extend_from_slice(&1_u32.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    for word in [index, UP, UP] {
        request.extend_from_slice(&word.to_ne_bytes());
    }
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut buffer = [0_u8; 1024];
    let (read, _) = rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
    // The answer always has the type NLMSG_ERROR: 0, or a negative errno.
    match next_message(&buffer[..read]) {
        Some((NLMSG_ERROR, body, _)) => match u32_at(body, 0).map(u32::cast_signed) {
            Some(0) => Ok(()),
            Some(code) => Err(std::io::Error::from_raw_os_error(-code)),
            None => Err(std::io::ErrorKind::InvalidData.into()),
        },
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

/// Addresses with their prefix lengths, by interface index.
pub(super) fn addresses() -> std::io::Result<BTreeMap<u32, Vec<(IpAddr, u8)>>> {
    let socket = open()?;
    // nlmsghdr {len, type, flags = REQUEST|DUMP, seq, pid} and an ifaddrmsg of zeroes (any family, any interface).
    let mut request = Vec::with_capacity(24);
    request.extend_from_slice(&24_u32.to_ne_bytes());
    request.extend_from_slice(&RTM_GETADDR.to_ne_bytes());
    request.extend_from_slice(&0x301_u16.to_ne_bytes());
    request.extend_from_slice(&1_u32.to_ne_bytes());
    request.extend_from_slice(&[0; 12]);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut found = BTreeMap::<u32, Vec<(IpAddr, u8)>>::new();
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let (read, _) = rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &buffer[..read];
        while let Some((kind, body, after)) = next_message(rest) {
            match kind {
                NLMSG_DONE | NLMSG_ERROR => return Ok(found),
                RTM_NEWADDR => {
                    if let Some((index, address, prefix)) = parse_address(body) {
                        found.entry(index).or_default().push((address, prefix));
                    }
                }
                _ => {}
            }
            rest = after;
        }
        if read == 0 {
            return Ok(found);
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn next_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let kind = u16_at(bytes, 4)?;
    let body = bytes.get(16..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// ifaddrmsg {family u8, prefixlen u8, flags u8, scope u8, index u32}, then attributes {len u16, type u16, data} on
/// four-byte borders.
fn parse_address(body: &[u8]) -> Option<(u32, IpAddr, u8)> {
    let prefix = *body.get(1)?;
    let index = u32_at(body, 4)?;
    let mut rest = body.get(8..)?;
    let mut address = None;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let Some(data) = rest.get(4..length) else {
            break;
        };
        let parsed = match data.len() {
            4 => <[u8; 4]>::try_from(data).ok().map(|b| IpAddr::V4(Ipv4Addr::from(b))),
            16 => <[u8; 16]>::try_from(data).ok().map(|b| IpAddr::V6(Ipv6Addr::from(b))),
            _ => None,
        };
        // On point-to-point links IFA_ADDRESS is the peer and IFA_LOCAL is ours.
        if parsed.is_some() && (kind == IFA_LOCAL || (kind == IFA_ADDRESS && address.is_none())) {
            address = parsed;
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((index, address?, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found() {
        let all = addresses().expect("netlink dump");
        assert!(all.values().flatten().any(|(a, _)| a.is_loopback()), "{all:?}");
    }

    #[test]
    fn truncated_messages_are_no_addresses() {
        for bytes in [&[][..], &[2, 24], &[2, 24, 0, 0, 1, 0, 0, 0], &[2, 24, 0, 0, 1, 0, 0, 0, 200, 0, 1, 0, 9]] {
            assert!(parse_address(bytes).is_none(), "{bytes:?}");
        }
        assert!(next_message(&[9, 0, 0, 0]).is_none());
    }
}
