//! What one node of a cluster says about all of them: the answer to CLUSTER NODES.
//!
//! Only reads; whether a view is believed is decided in `cluster`.

use crate::redis::url::Address;

/// Slots of every cluster.
pub(super) const SLOTS: usize = 16384;

/// One node as another one sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) address: Address,
    pub(super) is_primary: bool,
    /// Grows with every change of who owns what. A replica has that of its primary.
    pub(super) epoch: u64,
    /// First and last slot of each range.
    pub(super) slots: Vec<(usize, usize)>,
}

/// Reads an answer to CLUSTER NODES. A node that does not know its own address is at `asked`.
pub(super) fn read(text: &str, asked: &Address, tls: bool) -> Vec<Seen> {
    text.lines().filter_map(|line| node(line, asked, tls)).collect()
}

fn node(line: &str, asked: &Address, tls: bool) -> Option<Seen> {
    let mut words = line.split_ascii_whitespace();
    let (id, place, flags) = (words.next()?, words.next()?, words.next()?);
    let (_primary, _ping, _pong) = (words.next()?, words.next()?, words.next()?);
    let (epoch, _link) = (words.next()?.parse().ok()?, words.next()?);
    let has = |flag: &str| flags.split(',').any(|found| found == flag);
    if has("noaddr") || has("handshake") {
        return None;
    }
    // A range in brackets is one that is being moved; its owner is listed with it outside of brackets.
    let slots = words.filter(|word| !word.starts_with('[')).filter_map(range).collect();
    let address = address(place, asked, tls)?;
    Some(Seen { id: id.to_owned(), address, is_primary: has("master"), epoch, slots })
}

fn range(word: &str) -> Option<(usize, usize)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some((first, last))
}

/// `ip:port@bus[,hostname]`
fn address(place: &str, asked: &Address, tls: bool) -> Option<Address> {
    let (place, name) = place.split_once(',').unwrap_or((place, ""));
    // Further fields may follow the name: `name,shard-id=…`.
    let name = name.split(',').next().unwrap_or_default();
    let place = place.split_once('@').map_or(place, |(place, _bus)| place);
    let (ip, port) = place.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = match (ip, name) {
        // A certificate speaks of names.
        (_, name) if tls && !name.is_empty() && name != "?" => name,
        ("" | "?", _) => asked.host.as_str(),
        (ip, _) => ip,
    };
    Some(Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_node_is_read() {
        let text = "\
a1 127.0.0.1:30004@31004,hostname4 slave e7 0 1426238317239 4 connected
b2 10.0.0.2:30002@31002 master - 0 1426238316232 2 connected 5461-10922 11000 [93-<-c3]
c3 :30001@31001 myself,master - 0 0 1 connected 0-5460
d4 :0@0 master,noaddr - 1 1 3 disconnected 1-2
nonsense
e5 ::1:7000@17000,node-5,shard-id=x master,fail - 0 0 9 disconnected";
        let asked = Address { host: "seed".to_owned(), port: 1 };
        let seen = read(text, &asked, true);
        let short: Vec<_> = seen
            .iter()
            .map(|node| (node.address.to_string(), node.is_primary, node.epoch, node.slots.clone()))
            .collect();
        assert_eq!(
            short,
            [
                ("hostname4:30004".to_owned(), false, 4, vec![]),
                ("10.0.0.2:30002".to_owned(), true, 2, vec![(5461, 10922), (11000, 11000)]),
                ("seed:30001".to_owned(), true, 1, vec![(0, 5460)]),
                ("node-5:7000".to_owned(), true, 9, vec![]),
            ]
        );
        assert_eq!(read(text, &asked, false)[0].address.host, "127.0.0.1");
    }
}
