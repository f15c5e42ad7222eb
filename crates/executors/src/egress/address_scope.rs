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

const V4: [(Ipv4Addr, u32, AddressScope); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, AddressScope::Reserved),
    (Ipv4Addr::new(10, 0, 0, 0), 8, AddressScope::Private),
    // Carrier-grade NAT.
    (Ipv4Addr::new(100, 64, 0, 0), 10, AddressScope::Private),
    (Ipv4Addr::new(127, 0, 0, 0), 8, AddressScope::Private),
    (Ipv4Addr::new(169, 254, 0, 0), 16, AddressScope::Reserved),
    (Ipv4Addr::new(172, 16, 0, 0), 12, AddressScope::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, AddressScope::Reserved),
    (Ipv4Addr::new(192, 0, 2, 0), 24, AddressScope::Reserved),
    (Ipv4Addr::new(192, 88, 99, 0), 24, AddressScope::Reserved),
    (Ipv4Addr::new(192, 168, 0, 0), 16, AddressScope::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, AddressScope::Reserved),
    (Ipv4Addr::new(198, 51, 100, 0), 24, AddressScope::Reserved),
    (Ipv4Addr::new(203, 0, 113, 0), 24, AddressScope::Reserved),
    (Ipv4Addr::new(224, 0, 0, 0), 4, AddressScope::Reserved),
    (Ipv4Addr::new(240, 0, 0, 0), 4, AddressScope::Reserved),
];

/// The first match counts. Nothing outside 2000::/3 is public.
const V6: [(Ipv6Addr, u32, AddressScope); 6] = [
    (Ipv6Addr::LOCALHOST, 128, AddressScope::Private),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, AddressScope::Private),
    // Teredo, ORCHID, benchmarking and other protocols.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, AddressScope::Reserved),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, AddressScope::Reserved),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, AddressScope::Reserved),
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3, AddressScope::Public),
];

#[must_use]
pub fn address_scope(address: IpAddr) -> AddressScope {
    match address {
        IpAddr::V4(address) => scope_v4(address),
        IpAddr::V6(address) => scope_v6(address),
    }
}

fn scope_v4(address: Ipv4Addr) -> AddressScope {
    let within = |base: Ipv4Addr, bits: u32| (address.to_bits() ^ base.to_bits()).leading_zeros() >= bits;
    V4.iter()
        .find(|(base, bits, _)| within(*base, *bits))
        .map_or(AddressScope::Public, |(_, _, scope)| *scope)
}

fn scope_v6(address: Ipv6Addr) -> AddressScope {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return scope_v4(mapped);
    }
    // NAT64 and 6to4 addresses contain an IPv4 address that is translated elsewhere. It must be public.
    let [first, second, third, fourth, fifth, sixth, seventh, eighth] = address.segments();
    let translated = match (first, second, third, fourth, fifth, sixth) {
        (0x64, 0xff9b, 0, 0, 0, 0) => Some((seventh, eighth)),
        (0x2002, ..) => Some((second, third)),
        _ => None,
    };
    if let Some((high, low)) = translated {
        let inner = Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
        return if scope_v4(inner) == AddressScope::Public {
            AddressScope::Public
        } else {
            AddressScope::Reserved
        };
    }
    let within = |base: Ipv6Addr, bits: u32| (address.to_bits() ^ base.to_bits()).leading_zeros() >= bits;
    V6.iter()
        .find(|(base, bits, _)| within(*base, *bits))
        .map_or(AddressScope::Reserved, |(_, _, scope)| *scope)
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
