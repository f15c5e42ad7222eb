//! Parses the reply to CLUSTER NODES: what one node knows about the whole cluster.
//!
//! Only parses; `cluster` decides whether to use the result.

use crate::redis::url::Address;

pub(super) const SLOTS: usize = 16384;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterNode {
    pub(super) id: String,
    pub(super) address: Address,
    pub(super) is_primary: bool,
    /// Increases with every change of slot ownership. A replica has the epoch of its primary.
    pub(super) epoch: u64,
    /// First and last slot of each range.
    pub(super) slots: Vec<(usize, usize)>,
}

/// `queried` is the address of the replying node, which may not know its own.
pub(super) fn parse(text: &str, queried: &Address, tls: bool) -> Vec<ClusterNode> {
    text.lines().filter_map(|line| parse_node(line, queried, tls)).collect()
}

fn parse_node(line: &str, queried: &Address, tls: bool) -> Option<ClusterNode> {
    let mut words = line.split_ascii_whitespace();
    let (id, location, flags) = (words.next()?, words.next()?, words.next()?);
    let (_primary, _ping, _pong) = (words.next()?, words.next()?, words.next()?);
    let (epoch, _link) = (words.next()?.parse().ok()?, words.next()?);
    let has = |flag: &str| flags.split(',').any(|found| found == flag);
    if has("noaddr") || has("handshake") {
        return None;
    }
    // A range in brackets is in migration; its owner also lists it without brackets.
    let slots = words.filter(|word| !word.starts_with('[')).filter_map(parse_range).collect();
    let address = parse_address(location, queried, tls)?;
    Some(ClusterNode { id: id.to_owned(), address, is_primary: has("master"), epoch, slots })
}

fn parse_range(word: &str) -> Option<(usize, usize)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some((first, last))
}

/// Format: `ip:port@bus[,hostname]`
fn parse_address(location: &str, queried: &Address, tls: bool) -> Option<Address> {
    let (location, name) = location.split_once(',').unwrap_or((location, ""));
    // More fields may follow the name: `name,shard-id=…`.
    let name = name.split(',').next().unwrap_or_default();
    let location = location.split_once('@').map_or(location, |(location, _bus)| location);
    let (ip, port) = location.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = match (ip, name) {
        // Certificates are issued for names.
        (_, name) if tls && !name.is_empty() && name != "?" => name,
        ("" | "?", _) => queried.host.as_str(),
        (ip, _) => ip,
    };
    Some(Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_cluster_nodes() {
        let text = "\
a1 127.0.0.1:30004@31004,hostname4 slave e7 0 1426238317239 4 connected
b2 10.0.0.2:30002@31002 master - 0 1426238316232 2 connected 5461-10922 11000 [93-<-c3]
c3 :30001@31001 myself,master - 0 0 1 connected 0-5460
d4 :0@0 master,noaddr - 1 1 3 disconnected 1-2
nonsense
e5 ::1:7000@17000,node-5,shard-id=x master,fail - 0 0 9 disconnected";
        let queried = Address { host: "seed".to_owned(), port: 1 };
        let nodes = parse(text, &queried, true);
        let summary: Vec<_> = nodes
            .iter()
            .map(|node| (node.address.to_string(), node.is_primary, node.epoch, node.slots.clone()))
            .collect();
        assert_eq!(
            summary,
            [
                ("hostname4:30004".to_owned(), false, 4, vec![]),
                ("10.0.0.2:30002".to_owned(), true, 2, vec![(5461, 10922), (11000, 11000)]),
                ("seed:30001".to_owned(), true, 1, vec![(0, 5460)]),
                ("node-5:7000".to_owned(), true, 9, vec![]),
            ]
        );
        assert_eq!(parse(text, &queried, false)[0].address.host, "127.0.0.1");
    }
}
