//! The scope of IP addresses by the IANA special-purpose registries (RFC 6890 and its successors). An address that is not known to
//! be public is not public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressScope {
    Public,
    /// Private networks and this machine.
    Private,
    /// Never a valid destination of a call: link-local, multicast, documentation, benchmarking, reserved.
    Reserved,
}

#[must_use]
pub fn address_scope(address: IpAddr) -> AddressScope {
    match address {
        IpAddr::V4(address) => scope_v4(address),
        IpAddr::V6(address) => address.to_ipv4_mapped().map_or_else(|| scope_v6(address), scope_v4),
    }
}

fn scope_v4(address: Ipv4Addr) -> AddressScope {
    match address.octets() {
        [10 | 127, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressScope::Private,
        // Carrier-grade NAT.
        [100, 64..=127, ..] => AddressScope::Private,
        [0 | 224.., ..] | [169, 254, ..] | [192, 0, 0 | 2, _] | [192, 88, 99, _] => AddressScope::Reserved,
        [198, 18..=19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => AddressScope::Reserved,
        _ => AddressScope::Public,
    }
}

/// Nothing outside 2000::/3 is public.
fn scope_v6(address: Ipv6Addr) -> AddressScope {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] | [0xfc00..=0xfdff, ..] => AddressScope::Private,
        // NAT64 and 6to4 addresses contain an IPv4 address that is translated elsewhere. It must be public.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            match scope_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))) {
                AddressScope::Public => AddressScope::Public,
                _ => AddressScope::Reserved,
            }
        }
        // Teredo, ORCHID, benchmarking and other protocols, and documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressScope::Reserved,
        [0x2000..=0x3fff, ..] => AddressScope::Public,
        _ => AddressScope::Reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_special_purpose_addresses() {
        let cases = [
            (
                AddressScope::Public,
                "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 \
                 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 \
                 198.17.255.255 198.20.0.0 223.255.255.255 2606:4700::1111 2001:4860:4860::8888 2400::1 \
                 ::ffff:1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::1",
            ),
            (
                AddressScope::Private,
                "10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.1 127.255.255.255 172.16.0.0 \
                 172.31.255.255 192.168.0.0 192.168.255.255 ::1 fc00::1 fdff::1 ::ffff:127.0.0.1 ::ffff:10.1.2.3",
            ),
            (
                AddressScope::Reserved,
                "0.0.0.0 0.255.255.255 169.254.0.0 169.254.169.254 192.0.0.1 192.0.2.1 192.88.99.1 198.18.0.0 \
                 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 \
                 :: ::2 ::127.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 \
                 64:ff9b:1::1.1.1.1 100::1 2001::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::1 2002:a00:1::1 \
                 2002:a9fe:a9fe::1 3fff::1 4000::1 5f00::1 fe80::1 febf::1 fec0::1 ff02::1",
            ),
        ];
        for (scope, addresses) in cases {
            for address in addresses.split_whitespace() {
                assert_eq!(address_scope(address.parse().expect("an address")), scope, "{address}");
            }
        }
    }
}
