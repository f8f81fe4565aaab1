//! Which addresses a webhook must not have: those of a cloud's metadata service, which hands out the
//! machine's credentials, and other link-local ones unless the operator allows them; all that are not of the
//! public internet where private addresses are refused.
//!
//! Whoever may define a trigger chooses a URL that *we* connect to, from inside our network. The
//! guard therefore judges the address that a connection is made to, after the name was resolved:
//! a name that resolves to something else the second time, and the decimal or octal spellings of
//! an address, come out as what they are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is refused even where private ones are not: it is link-local, or known to be that of a
/// metadata service.
pub(super) fn link_local(address: IpAddr) -> Option<&'static str> {
    const METADATA: &str = "the address of a metadata service";
    let v4 = |address: Ipv4Addr| match address.octets() {
        [169, 254, ..] => Some("a link-local address"),
        // Azure, Alibaba, Oracle.
        [168, 63, 129, 16] | [100, 100, 100, 200] | [192, 0, 0, 192] => Some(METADATA),
        _ => None,
    };
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        v4(Ipv4Addr::new(a, b, c, d))
    };
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => match address.segments() {
            [0xfe80..=0xfebf, ..] => Some("a link-local address"),
            // AWS, Google.
            [0xfd00, 0x0ec2, ..] | [0xfd20, 0x00ce, ..] => Some(METADATA),
            // Spellings of an IPv4 address.
            [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
            | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
            | [0x2002, high, low, ..] => embedded(high, low),
            _ => None,
        },
    }
}

/// Why an address is refused; `None` if it is one of the public internet.
pub(super) fn refusal(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => refusal_v4(v4),
        IpAddr::V6(v6) => refusal_v6(v6),
    }
}

fn refusal_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) => Some("an unspecified address"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("a private address"),
        (100, 64..=127, _) => Some("a shared (carrier-grade NAT) address"),
        (127, ..) => Some("a loopback address"),
        // Azure's metadata and DNS server: the one such address that looks public.
        (168, 63, 129) if address == Ipv4Addr::new(168, 63, 129, 16) => Some("a metadata address"),
        (169, 254, _) => Some("a link-local address"),
        (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _) | (240.., ..) => Some("a reserved address"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("a documentation address"),
        (224..=239, ..) => Some("a multicast address"),
        _ => None,
    }
}

fn refusal_v6(address: Ipv6Addr) -> Option<&'static str> {
    let parts = address.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        refusal_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("an unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("a loopback address"),
        // No honest name resolves to these spellings of an IPv4 address.
        [0, 0, 0, 0, 0, 0xffff, ..] => Some("an IPv4-mapped address"),
        [0, 0, 0, 0, 0, 0, ..] => Some("an IPv4-compatible address"),
        // NAT64 and 6to4 lead to the IPv4 address that they contain.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        [0xfc00..=0xfdff, ..] => Some("a unique local address"),
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xfec0..=0xfeff, ..] => Some("a site-local address"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("a documentation address"),
        // Teredo, ORCHID, benchmarking and other protocol assignments.
        [0x2001, 0..=0x01ff, ..] => Some("a reserved address"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("a reserved address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_public_internet_is_refused() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "169.254.170.2",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:0a00:0001::1",
            "2002:7f00:0001::1",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(refusal(address.parse().unwrap()).is_some(), "{address}");
        }
    }

    #[test]
    fn metadata_services_are_known_however_they_are_spelt() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::1",
        ] {
            let address = address.parse().unwrap();
            assert!(link_local(address).is_some(), "{address}");
            assert!(refusal(address).is_some(), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "8.8.8.8",
            "::1",
            "fd12::1",
        ] {
            assert_eq!(link_local(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn the_public_internet_is_not() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "168.63.129.17",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.0.1",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2a00:1450:4001::1",
            "64:ff9b::8.8.8.8",
            "2002:0808:0808::1",
        ] {
            assert_eq!(refusal(address.parse().unwrap()), None, "{address}");
        }
    }
}
